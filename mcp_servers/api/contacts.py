"""Test and refresh: ask a server now, and answer what came of it."""

from typing import Any

from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.tenancy.principals import Principal
from mcp_servers.discovery import Discovered, discover
from mcp_servers.models import Check, Server


def contact(principal: Principal, server: Server, *, kind: str = Check.Kind.TEST) -> dict[str, Any]:
    """Discover the server and return the answer of FEATURES A11; a failure is an answer too."""
    try:
        found: Discovered = runtime().call(discover, server.pk, actor=principal.actor, kind=kind)
    except Problem as problem:
        return _failed(problem)
    tools = server.definitions.tools().filter(present=True).order_by("name")
    answer: dict[str, Any] = {
        "status": "connected",
        "tools_discovered": len(found.tools),
        "tools": list(tools.values("name", "description")),
        "latency_ms": found.latency_ms,
    }
    if kind == Check.Kind.DISCOVERY:
        answer |= {
            "new": found.new,
            "changed": found.changed,
            "gone": found.gone,
            "waiting": found.waiting,
            "refused": found.refused,
            "notices": list(found.notices),
        }
    return answer


def _failed(problem: Problem) -> dict[str, Any]:
    return {
        "status": "needs_reauth" if problem.code == "needs_reauth" else "error",
        "tools_discovered": 0,
        "tools": [],
        "latency_ms": None,
        "code": problem.code,
        "detail": str(problem),
        "remedy": problem.remedy,
    }
