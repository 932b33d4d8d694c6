"""`find_tools`: for agents with more tools than are shown to their model at once (FEATURES X11)."""

import asyncio
from typing import TYPE_CHECKING, Any

from agents.builtin_tools.tool import BuiltinTool, Context
from agents.governance.searching import Index, Text
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from mcp_servers.labels import Label

if TYPE_CHECKING:
    from agents.governance.snapshots import Snapshot

FIND_TOOLS = "find_tools"
SHOWN, MOST = 8, 20
DESCRIPTION_SHOWN = 160
NOTHING = "No tool fits these words. Try others: what is to be done, and to what."


async def _find(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the tools that fit, a line each; their names are in the structured part.

    Only what may be called is searched: what policy forbids doesn't exist here.
    """
    snapshot = context.snapshot
    index = snapshot.memo.get(FIND_TOOLS)
    if index is None:
        index = snapshot.memo[FIND_TOOLS] = await asyncio.to_thread(_index, snapshot)
    names = index.search(arguments["query"], arguments.get("limit", SHOWN))
    lines = [f"{name}: {_about(snapshot, name)}" for name in names]
    if lines:
        lines.append("You can call these now.")
    return {
        "content": [{"type": "text", "text": "\n".join(lines) or NOTHING}],
        "structuredContent": {"tools": names},
    }


def _index(snapshot: "Snapshot") -> Index:
    return Index(
        Text(tool.name, tool.description, tool.input_schema) for tool in snapshot.searchable()
    )


def _about(snapshot: "Snapshot", name: str) -> str:
    return visible(" ".join(snapshot.tools[name].description.split()), DESCRIPTION_SHOWN)


FINDING = BuiltinTool(
    name=FIND_TOOLS,
    description=say(
        "Find more tools that you can call, by words: say what is to be done, and to what. "
        "You get their names, and have the tools themselves from then on."
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
            "limit": {"type": "integer", "minimum": 1, "maximum": MOST},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
    run=_find,
    of_many=True,
    labels=(Label.REPEATABLE,),
)
