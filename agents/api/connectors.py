"""A server as a connector that any caller may use, without an agent (FEATURES C1)."""

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
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.roles import Action
from mcp_servers.api.servers import ServerResource
from mcp_servers.discovery import discover
from mcp_servers.models import Check, Server

METHODS = ("initialize", "tools/list", "tools/call")


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
    ]
)
class ExecuteBody(Shape):
    """What is asked of a server, in MCP's own words."""

    method = serializers.CharField(help_text=f"One of: {', '.join(METHODS)}.")
    params = serializers.DictField(required=False)
    timeout_s = serializers.FloatField(required=False, min_value=0.1, max_value=LONGEST_CALL_S)
    unapproved = serializers.BooleanField(
        required=False, help_text="Try a tool that waits; for those who may approve it."
    )


class CallParams(Shape):
    """The parameters of `tools/call`."""

    name = serializers.CharField(trim_whitespace=False)
    arguments = serializers.DictField(required=False)


class Execute(ServerResource):
    """Requests to a server without an agent."""

    rules = {"POST": Action.CALL_TOOLS}

    @operation("execute", body=ExecuteBody, answer=OutcomeShape, calls=True)
    def post(self, request: object, server_id: str) -> Response:
        """Ask a server without an agent: `initialize`, `tools/list` or `tools/call`.

        Calls go through the door, under the organization's policy, the token's limits and the
        audit. `tools/list` lists what may be called; `initialize` connects now.
        """
        server = self.server(server_id)
        body = self.read(ExecuteBody)
        do = {
            "initialize": self._initialize,
            "tools/list": self._list,
            "tools/call": self._call,
        }.get(body["method"])
        if do is None:
            raise Invalid(
                f"There is no method {body['method']!r} here.",
                code="unknown_method",
                field="method",
                remedy=f"Use one of: {', '.join(METHODS)}.",
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

    def _call(self, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        params = CallParams(data=body.get("params", {}))
        if not params.is_valid():
            raise serializers.ValidationError({"params": params.errors})
        wanted = calls.Request(
            principal=self.principal,
            tool=params.validated_data["name"],
            arguments=params.validated_data.get("arguments", {}),
            via="rest",
            holder=f"server:{server.pk}:{self.principal.id}",
            server_id=server.pk,
            timeout_s=body.get("timeout_s"),
            unapproved=body.get("unapproved", False),
        )
        return runtime().call(calls.call, wanted).as_dict()


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
        "server": server.name,
        "tool": "",
    }
