"""Run a built-in tool, once the door let the call through."""

from typing import Any

from django.db.models import F

from agents.builtin_tools.tool import BuiltinTool, Context
from agents.governance.flows import SEEN
from agents.holding import held_now
from agents.models import Agent
from bonobot.ledger.changes import change
from bonobot.lib.runtime import runtime
from mcp_servers.labels import bits, labels_in


async def run_builtin(
    tool: BuiltinTool, context: Context, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Return the tool's result as MCP has it; raises `Problem`."""
    if tool.writes:
        await runtime().orm(_carry_over, context)
    found = await tool.run(context, arguments)
    return {"content": [{"type": "text", "text": found}]} if isinstance(found, str) else found


def _carry_over(context: Context) -> None:
    """Write down, before something is written, what its writer has seen (FEATURES X9).

    A file outlives the session: without this, what one session read in private another could read
    in the workspace and send out. The change is governed, so the very next call knows of it.
    """
    held = bits(
        held_now(
            context.principal, session_id=context.holding_session, agent_id=context.agent_id
        )
    )
    if context.agent_id is None or not held & SEEN & ~bits(context.toolbox.holds):
        return
    agent = Agent.objects.get(pk=context.agent_id)
    if not (missing := held & SEEN & ~agent.workspace_holds):
        return
    with change(
        organization_id=agent.organization_id,
        actor=context.principal.actor,
        action="workspace_labelled",
        resource_type="agent",
        resource_id=str(agent.pk),
        resource_name=agent.name,
        details={"labels": list(labels_in(missing))},
    ):
        Agent.objects.filter(pk=agent.pk).update(
            workspace_holds=F("workspace_holds").bitor(missing)
        )
