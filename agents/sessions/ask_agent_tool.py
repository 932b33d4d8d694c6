"""The ask_… tools, with which one agent calls another.

The other agent runs in a child session under its own policy; its cost counts for the root session.
"""

import hashlib
from functools import partial
from typing import Any
from uuid import UUID

from agents.builtin_tools.types import (
    AgentBuiltinTool,
    BuiltinTool,
    BuiltinToolContext,
    BuiltinToolHints,
)
from agents.models import Agent
from agents.policies.decisions import ToolFacts
from agents.sessions import child_sessions
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict
from mcp_servers.flow_labels import FlowLabel

MAX_NAME_LENGTH = 64


def build_tool_name(prefix: str, slug: str) -> str:
    """Return the tool name for a row's slug; a long name is cut and ends in a digest."""
    name = f"{prefix}_{slug}"
    if len(name) <= MAX_NAME_LENGTH:
        return name
    return f"{name[: MAX_NAME_LENGTH - 9]}_{hashlib.sha256(slug.encode()).hexdigest()[:8]}"


def build_ask_tool(agent: Agent) -> AgentBuiltinTool:
    """Return the tool that calls an agent; callable if the agent is enabled."""
    name, description = agent.name, agent.description
    if description:
        tool_description = format_message(
            "Ask the agent {name} and wait for its answer. {description}",
            name=name,
            description=description,
        )
    else:
        tool_description = format_message(
            "Ask the agent {name} and wait for its answer.", name=name
        )
    tool = BuiltinTool(
        name=build_tool_name("ask", agent.slug),
        description=tool_description,
        input_schema={
            "type": "object",
            "properties": {
                "message": {
                    "type": "string",
                    "minLength": 1,
                    "description": "What the agent should do. It doesn't see this conversation.",
                }
            },
            "required": ["message"],
            "additionalProperties": False,
        },
        run=partial(_ask_agent, agent.pk),
        # A repeated call joins the session that the first one started.
        labels=(FlowLabel.REPEATABLE,),
        hints=BuiltinToolHints(
            read_only=False, destructive=True, idempotent=False, open_world=True
        ),
    )
    facts = ToolFacts(source="builtin", own_name=tool.name, label=tool.name, enabled=agent.enabled)
    return AgentBuiltinTool(tool, facts, tool.labels)


async def _ask_agent(agent_id: UUID, context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    text, parent_id = arguments["message"], get_parent_session_id(context)
    add_message = child_sessions.build_message_initializer(context.principal, text)
    start = partial(
        child_sessions.start_child,
        context.principal,
        parent_id,
        context.call_id,
        agent_id,
        text,
        add_message,
    )
    return await child_sessions.run_child(parent_id, start, context.stopping)


def get_parent_session_id(context: BuiltinToolContext) -> UUID:
    """Return the session of a call; raises `Conflict` (code `no_session`)."""
    if context.session_id is None:
        raise Conflict(
            "Agents can only be called from a session.",
            code="no_session",
            remedy="Start a session with that agent instead.",
        )
    return context.session_id
