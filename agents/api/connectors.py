"""A server as a connector that any caller may use, without an agent (FEATURES C1)."""

import json
from time import perf_counter
from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from agents import calls
from agents.api.shapes import LONGEST_CALL_S, OutcomeShape
from agents.governance.snapshots import snapshots
from bonobot.lib.problems import Invalid, Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from bonobot.tenancy.active import client_of
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.roles import Action
from mcp_servers.api.servers import ServerResource
from mcp_servers.discovery import discover
from mcp_servers.models import Check, Server
from mcp_servers.uri_templates import LONGEST_URI

LISTS = {
    "resources/list": ("resources", "resource"),
    "resources/templates/list": ("resourceTemplates", "resource_template"),
    "prompts/list": ("prompts", "prompt"),
}
METHODS = (
    *("initialize", "tools/list", "tools/call", *LISTS),
    *("resources/read", "prompts/get", "completion/complete"),
)


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "A call",
            {
                "method": "tools/call",
                "params": {"name": "get_current_time", "arguments": {"timezone": "Asia/Tokyo"}},
            },
        ),
        OpenApiExample("What it offers", {"method": "tools/list"}),
        OpenApiExample(
            "A resource", {"method": "resources/read", "params": {"uri": "docs://intro"}}
        ),
    ]
)
class ExecuteBody(Shape):
    """What is asked of a server, in MCP's own words."""

    method = serializers.CharField(help_text=f"One of: {', '.join(METHODS)}.")
    params = serializers.DictField(required=False)
    timeout_s = serializers.FloatField(required=False, min_value=0.1, max_value=LONGEST_CALL_S)
    unapproved = serializers.BooleanField(
        required=False, help_text="Try what waits; for those who may approve it."
    )


class CallParams(Shape):
    """The parameters of `tools/call`."""

    name = serializers.CharField(trim_whitespace=False)
    arguments = serializers.DictField(required=False)


class ReadParams(Shape):
    """The parameters of `resources/read`."""

    uri = serializers.CharField(trim_whitespace=False, max_length=LONGEST_URI)


class RefShape(Shape):
    """What is completed: a prompt by its name, or a resource by its template."""

    type = serializers.ChoiceField(["ref/prompt", "ref/resource"])
    name = serializers.CharField(required=False, trim_whitespace=False)
    uri = serializers.CharField(required=False, trim_whitespace=False)


class CompleteParams(Shape):
    """The parameters of `completion/complete`."""

    ref = RefShape()
    argument = serializers.DictField()
    context = serializers.DictField(required=False)  # type: ignore[assignment]  # DRF moves it


class Execute(ServerResource):
    """Requests to a server without an agent."""

    rules = {"POST": Action.CALL_TOOLS}

    @operation("execute", body=ExecuteBody, answer=OutcomeShape, calls=True)
    def post(self, request: object, server_id: str) -> Response:
        """Ask a server without an agent, by MCP's own methods.

        Calls, reads, prompts and completions go through the door, under the organization's policy,
        the token's limits and the audit. Lists name what may be used; `initialize` connects now.
        """
        server = self.server(server_id)
        body = self.read(ExecuteBody)
        do = {
            "initialize": self._initialize,
            "tools/list": self._list,
            "tools/call": self._call,
            **dict.fromkeys(LISTS, self._list_offers),
            "resources/read": self._read,
            "prompts/get": self._call,
            "completion/complete": self._complete,
        }.get(body["method"])
        if do is None:
            raise Invalid(
                say("There is no method {method!r} here.", method=body["method"]),
                code="unknown_method",
                field="method",
                remedy=say("Use one of: {methods}.", methods=", ".join(METHODS)),
            )
        return Response(do(server, body))

    def _initialize(self, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        began = perf_counter()
        actor = self.principal.actor
        try:
            runtime().call(discover, server.pk, actor=actor, kind=Check.Kind.TEST)
        except Problem as problem:
            return _outcome(server, began, problem=problem)
        server.refresh_from_db()
        return _outcome(server, began, result=_greeting(server))

    def _list(self, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        began = perf_counter()
        offered = snapshots().current("server", server.pk).offered()
        return _outcome(server, began, result={"tools": [dict(t.declaration) for t in offered]})

    def _list_offers(self, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        began = perf_counter()
        member, kind = LISTS[body["method"]]
        offers = snapshots().current("server", server.pk).offers_of(kind)
        listed = [dict(one.declaration) for one in offers if one.decision.allowed]
        return _outcome(server, began, result={member: listed})

    def _call(self, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        params = _params(CallParams, body)
        return self._made(server, body, params["name"], params.get("arguments", {}))

    def _read(self, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        return self._made(server, body, _params(ReadParams, body)["uri"], {})

    def _complete(self, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        params = _params(CompleteParams, body)
        ref = params["ref"]
        member = "name" if ref["type"] == "ref/prompt" else "uri"
        if member not in ref:
            raise serializers.ValidationError({"params": {"ref": {member: ["Say what is meant."]}}})
        return self._made(server, body, ref[member], params)

    def _made(
        self, server: Server, body: dict[str, Any], name: str, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        wanted = calls.Request(
            principal=self.principal,
            method=body["method"],
            tool=name,
            arguments=arguments,
            via="rest",
            client=client_of(self.request),
            holder=f"server:{server.pk}:{self.principal.id}",
            server_id=server.pk,
            timeout_s=body.get("timeout_s"),
            unapproved=body.get("unapproved", False),
        )
        return runtime().call(calls.call, wanted).as_dict()


def _params(shape: type[Shape], body: dict[str, Any]) -> dict[str, Any]:
    """Return the checked parameters of a method, in plain dictionaries."""
    params = shape(data=body.get("params", {}))
    if not params.is_valid():
        raise serializers.ValidationError({"params": params.errors})
    found: dict[str, Any] = json.loads(json.dumps(params.validated_data))
    return found


def _greeting(server: Server) -> dict[str, Any]:
    """Return what the server said of itself, in the words of MCP's `initialize`."""
    said: dict[str, Any] = server.discovery or {}
    names = ("protocolVersion", "capabilities", "instructions")
    return {name: said[name] for name in names if name in said} | {"serverInfo": server.server_info}


def _outcome(
    server: Server,
    began: float,
    *,
    result: dict[str, Any] | None = None,
    problem: Problem | None = None,
) -> dict[str, Any]:
    """Return the shape of a call's outcome for what isn't one."""
    return {
        "call_id": None,
        "outcome": "ok" if problem is None else "error",
        "is_error": problem is not None,
        "text": "" if problem is None else str(problem),
        "result": result or {},
        "code": "" if problem is None else problem.code,
        "remedy": "" if problem is None else problem.remedy,
        "duration_ms": round((perf_counter() - began) * 1000),
        "cost_microusd": 0,
        "server": server.name,
        "tool": "",
        "sanitized": {},
        "flagged": {},
    }
