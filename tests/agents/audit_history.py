"""Audit entries of calls that were never made."""

from typing import Any
from uuid import uuid4

from agents.models import Agent
from bonobot.ledger.types import Actor, Admission, Opening, Settlement
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.models import Server


def history(
    agent: Agent,
    calls: int,
    server: Server | None = None,
    tool: str = "read_result",
    **arguments: Any,
) -> None:
    """Record allowed calls of an agent, of a server's tool or a built-in one."""
    writer = get_writer()
    futures = []
    for number in range(calls):
        opening = Opening(
            call_id=uuid4(),
            organization_id=agent.organization_id,
            action="agent_tool_call",
            event_type="call",
            resource_type="mcp_tool" if server else "builtin_tool",
            resource_id=tool,
            actor=Actor("user", "1", "Ann"),
            decision="allow",
            rule="policy:all",
            details={"tool_name": tool, "arguments": {"number": number, **arguments}},
            agent_id=agent.pk,
            agent_name=agent.name,
            server_id=server.pk if server else None,
            server_name=server.name if server else "",
            tool_name=tool,
        )
        settlement = Settlement(
            call_id=opening.call_id,
            organization_id=opening.organization_id,
            outcome="ok",
            duration_ms=1,
        )
        writer.admit_call(Admission(opening))
        futures.append(writer.settle_call(settlement))
    assert all(future.result() for future in futures)
