"""The tool `find_tools`: full-text search over an agent's tools.

`FIND_TOOLS_TOOL` is for agents' models, which are then shown what they found. `CATALOG_FIND_TOOL`
and `DESCRIBE_TOOL_TOOL` are for MCP clients that use the search view of the gateway.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agents.builtin_tools.tool_search_index import SearchableTool, ToolSearchIndex
from agents.builtin_tools.types import AgentSnapshot, BuiltinTool, BuiltinToolContext
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.usage.recent_successes import count_recent_successes
from mcp_servers.flow_labels import FlowLabel

FIND_TOOLS = "find_tools"
DESCRIBE_TOOL = "describe_tool"
CALL_TOOL = "call_tool"
DEFAULT_LIMIT, MAX_LIMIT = 8, 20
MAX_DESCRIPTION_LENGTH = 160
NO_MATCH_TEXT = "No tool fits these words. Try others: what is to be done, and to what."


# How long counts of successful calls are used before they are counted again.
SUCCESSES_LIFETIME_S = 300.0


async def _handle_find_tools(
    context: BuiltinToolContext, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Return the matching tools for a model, which can call them from then on."""
    return await _find_tools(context, arguments, "You can call these now.")


async def _handle_catalog_find_tools(
    context: BuiltinToolContext, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Return the matching tools for a client of the search view."""
    hint = f"Use {DESCRIBE_TOOL} for a tool's arguments, and {CALL_TOOL} to call it."
    return await _find_tools(context, arguments, hint)


async def _find_tools(
    context: BuiltinToolContext, arguments: dict[str, Any], hint: str
) -> dict[str, Any]:
    """Return the matching tools, one per line, and their names as structured content.

    Only tools that policy allows are searched.
    """
    snapshot = context.snapshot
    index = snapshot.memo.get(FIND_TOOLS)
    if index is None:
        index = snapshot.memo[FIND_TOOLS] = await asyncio.to_thread(_build_index, snapshot)
    successes = await _get_successes(context)
    names = index.search(arguments["query"], arguments.get("limit", DEFAULT_LIMIT), successes)
    lines = [f"{name}: {_shorten_description(snapshot, name)}" for name in names]
    if lines:
        lines.append(hint)
    return {
        "content": [{"type": "text", "text": "\n".join(lines) or NO_MATCH_TEXT}],
        "structuredContent": {"tools": names},
    }


def _build_index(snapshot: AgentSnapshot) -> ToolSearchIndex:
    return ToolSearchIndex(
        SearchableTool(tool.name, tool.description, tool.input_schema, tool.facts.server_name)
        for tool in snapshot.list_searchable_tools()
    )


async def _get_successes(context: BuiltinToolContext) -> Mapping[str, int]:
    """Return the numbers of successful calls by tool name.

    Counts the agent's calls if the principal may see the audit log, else only its own.
    """
    actor = None if context.principal.may(Action.VIEW_AUDIT) else context.principal.actor
    key = "tool successes", actor and (actor.kind, actor.id)
    memo, now = context.snapshot.memo, time.monotonic()
    counted_at, successes = memo.get(key, (0.0, None))
    if successes is None or counted_at + SUCCESSES_LIFETIME_S < now:
        counts = await get_runtime().run_orm(
            count_recent_successes, context.organization_id, context.agent_id, actor
        )
        successes = {
            tool.name: count
            for tool in context.snapshot.list_searchable_tools()
            if (count := counts.get((tool.facts.server_id, tool.facts.own_name)))
        }
        memo[key] = now, successes
    return successes


def _shorten_description(snapshot: AgentSnapshot, name: str) -> str:
    from mcp_servers.scanning.description_markup import strip_markup

    description = strip_markup(snapshot.tools[name].description)
    return make_visible(" ".join(description.split()), MAX_DESCRIPTION_LENGTH)


FIND_TOOLS_TOOL = BuiltinTool(
    name=FIND_TOOLS,
    description=format_message(
        "Search for more tools you can call. Describe what to do and with what. Returns "
        "the tool names and makes the tools available from then on."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "minLength": 1,
                "maxLength": 500,
                "description": "What the tool is to do, in a few words.",
            },
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
    run=_handle_find_tools,
    needs_many_tools=True,
    labels=(FlowLabel.REPEATABLE,),
)

CATALOG_FIND_TOOL = replace(
    FIND_TOOLS_TOOL,
    description=format_message(
        "Search for tools. Describe what to do and with what. Returns the names and descriptions "
        "of the best matches."
    ),
    run=_handle_catalog_find_tools,
    needs_many_tools=False,
)


async def _handle_describe_tool(
    context: BuiltinToolContext, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Return a tool's declaration; raises `NotFound` for one that can't be called."""
    name = arguments["name"]
    tools = {tool.name: tool for tool in context.snapshot.list_searchable_tools()}
    tool = tools.get(name)
    if tool is None:
        raise NotFound(
            format_message("There is no tool {name!r}.", name=make_visible(name, 100)),
            code="unknown_tool",
            remedy=format_message("Search for tools with `find_tools`."),
        )
    declaration = {**tool.declaration, "name": tool.name}
    return {
        "content": [{"type": "text", "text": json.dumps(declaration, ensure_ascii=False)}],
        "structuredContent": {"tool": declaration},
    }


_TOOL_NAME_SCHEMA = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "description": f"The name of a tool, as {FIND_TOOLS} returns it.",
}
DESCRIBE_TOOL_TOOL = BuiltinTool(
    name=DESCRIBE_TOOL,
    description=format_message(
        "Show a tool's full description and the JSON Schema of its arguments."
    ),
    input_schema={
        "type": "object",
        "properties": {"name": _TOOL_NAME_SCHEMA},
        "required": ["name"],
        "additionalProperties": False,
    },
    run=_handle_describe_tool,
    labels=(FlowLabel.REPEATABLE,),
)
# The tools of the search view that are built-in tools, by name.
CATALOG_TOOLS = {tool.name: tool for tool in (CATALOG_FIND_TOOL, DESCRIBE_TOOL_TOOL)}
# `call_tool` is no tool of its own: the gateway calls the tool that it names.
CALL_TOOL_DECLARATION: dict[str, Any] = {
    "name": CALL_TOOL,
    "description": f"Call a tool that {FIND_TOOLS} returned. Returns the tool's own result.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "name": _TOOL_NAME_SCHEMA,
            "arguments": {
                "type": "object",
                "description": f"The tool's arguments, as {DESCRIBE_TOOL} describes them.",
            },
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    "annotations": {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
}
