"""REST of requests to a server without an agent: /mcp-servers/{id}/execute."""

import json
from time import perf_counter
from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agent_tools import MAX_CALL_S, CallResultSerializer
from agents.calls import pipeline
from agents.calls.snapshots import get_snapshot_cache
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.current_organization import read_client_name
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.api.servers import ServerView
from mcp_servers.discovery import run_discovery
from mcp_servers.models import HealthCheck, Server
from mcp_servers.uri_templates import MAX_URI_LENGTH

LIST_METHODS = {
    "resources/list": ("resources", "resource"),
    "resources/templates/list": ("resourceTemplates", "resource_template"),
    "skills/list": ("skills", "skill"),
    "prompts/list": ("prompts", "prompt"),
}
METHODS = (
    *("initialize", "tools/list", "tools/call", *LIST_METHODS),
    *("resources/read", "prompts/get", "completion/complete"),
)


class ExecuteBody(StrictSerializer):
    """A request to a server, with a method of MCP."""

    method = serializers.CharField(help_text=f"One of: {', '.join(METHODS)}.")
    params = serializers.DictField(required=False)
    timeout_s = serializers.FloatField(required=False, min_value=0.1, max_value=MAX_CALL_S)
    unapproved = serializers.BooleanField(
        required=False,
        help_text="Use a definition that is pending review; requires permission to approve it.",
    )


class CallToolParams(StrictSerializer):
    """The parameters of `tools/call`."""

    name = serializers.CharField(trim_whitespace=False)
    arguments = serializers.DictField(required=False)


class ReadResourceParams(StrictSerializer):
    """The parameters of `resources/read`."""

    uri = serializers.CharField(trim_whitespace=False, max_length=MAX_URI_LENGTH)


class CompletionReferenceSerializer(StrictSerializer):
    """The completion's reference: a prompt by name, or a resource by template."""

    type = serializers.ChoiceField(["ref/prompt", "ref/resource"])
    name = serializers.CharField(required=False, trim_whitespace=False)
    uri = serializers.CharField(required=False, trim_whitespace=False)


class CompleteParams(StrictSerializer):
    """The parameters of `completion/complete`."""

    ref = CompletionReferenceSerializer()
    argument = serializers.DictField()
    context = serializers.DictField(required=False)  # type: ignore[assignment]  # DRF moves it


class ExecuteServerRequestView(ServerView):
    """Requests to a server without an agent."""

    rules = {"POST": Action.CALL_TOOLS}

    @describe_operation("call_server", body=ExecuteBody, answer=CallResultSerializer, calls=True)
    def post(self, request: object, server_id: str) -> Response:
        """Send a request to a server without an agent, by MCP method.

        Calls, resource reads, prompts, and completions use the call pipeline, with the
        organization's policy, the token's limits, and the audit log. Lists contain only what the
        caller can use. `initialize` connects to the server.
        """
        server = self.get_server(server_id)
        body = self.read_body(ExecuteBody)
        handler = {
            "initialize": self._initialize,
            "tools/list": self._list_tools,
            "tools/call": self._call_by_name,
            **dict.fromkeys(LIST_METHODS, self._list_definitions),
            "resources/read": self._read_resource,
            "prompts/get": self._call_by_name,
            "completion/complete": self._complete,
        }.get(body["method"])
        if handler is None:
            raise InvalidInput(
                format_message("Unknown method {method!r}.", method=body["method"]),
                code="unknown_method",
                field="method",
                remedy=format_message("Use one of: {values}.", values=", ".join(METHODS)),
            )
        return Response(handler(server, body))

    def _initialize(self, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        started_at = perf_counter()
        actor = self.principal.actor
        try:
            get_runtime().call(run_discovery, server.pk, actor=actor, kind=HealthCheck.Kind.TEST)
        except Problem as problem:
            return _build_outcome(server, started_at, problem=problem)
        server.refresh_from_db()
        return _build_outcome(server, started_at, result=_build_initialize_result(server))

    def _list_tools(self, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        started_at = perf_counter()
        tools = get_snapshot_cache().load_current("server", server.pk).list_callable_tools()
        return _build_outcome(
            server, started_at, result={"tools": [dict(t.declaration) for t in tools]}
        )

    def _list_definitions(self, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        started_at = perf_counter()
        result_key, kind = LIST_METHODS[body["method"]]
        definitions = get_snapshot_cache().load_current("server", server.pk).list_definitions(kind)
        declarations = [
            dict(definition.declaration)
            for definition in definitions
            if definition.decision.allowed
        ]
        return _build_outcome(server, started_at, result={result_key: declarations})

    def _call_by_name(self, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        params = _parse_params(CallToolParams, body)
        return self._call_server(server, body, params["name"], params.get("arguments", {}))

    def _read_resource(self, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        return self._call_server(server, body, _parse_params(ReadResourceParams, body)["uri"], {})

    def _complete(self, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        params = _parse_params(CompleteParams, body)
        ref = params["ref"]
        reference_key = "name" if ref["type"] == "ref/prompt" else "uri"
        if reference_key not in ref:
            raise serializers.ValidationError(
                {"params": {"ref": {reference_key: ["Say what is meant."]}}}
            )
        return self._call_server(server, body, ref[reference_key], params)

    def _call_server(
        self, server: Server, body: dict[str, Any], name: str, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        call_request = pipeline.CallRequest(
            principal=self.principal,
            method=body["method"],
            tool=name,
            arguments=arguments,
            via="rest",
            client=read_client_name(self.request),
            holder=f"server:{server.pk}:{self.principal.id}",
            server_id=server.pk,
            timeout_s=body.get("timeout_s"),
            allow_unapproved=body.get("unapproved", False),
        )
        return get_runtime().call(pipeline.make_call, call_request).as_dict()


def _parse_params(serializer_class: type[StrictSerializer], body: dict[str, Any]) -> dict[str, Any]:
    """Return the validated parameters of a method as plain dictionaries."""
    serializer = serializer_class(data=body.get("params", {}))
    if not serializer.is_valid():
        raise serializers.ValidationError({"params": serializer.errors})
    validated: dict[str, Any] = json.loads(json.dumps(serializer.validated_data))
    return validated


def _build_initialize_result(server: Server) -> dict[str, Any]:
    """Return the stored discovery as a result of MCP's `initialize`."""
    discovery: dict[str, Any] = server.discovery or {}
    names = ("protocolVersion", "capabilities", "instructions")
    return {name: discovery[name] for name in names if name in discovery} | {
        "serverInfo": server.server_info
    }


def _build_outcome(
    server: Server,
    started_at: float,
    *,
    result: dict[str, Any] | None = None,
    problem: Problem | None = None,
) -> dict[str, Any]:
    """Return a call result for a request that is not an audited call."""
    return {
        "call_id": None,
        "outcome": "ok" if problem is None else "error",
        "is_error": problem is not None,
        "text": "" if problem is None else str(problem),
        "result": result or {},
        "code": "" if problem is None else problem.code,
        "remedy": "" if problem is None else problem.remedy,
        "duration_ms": round((perf_counter() - started_at) * 1000),
        "cost_microusd": 0,
        "server": server.name,
        "tool": "",
        "sanitized": {},
        "flagged": {},
    }
