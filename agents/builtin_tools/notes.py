"""`remember`, `search_notes` and `forget`: an agent's own notes, for later sessions (D6).

A note keeps the labels that its writer held, and reading it brings them: a note of a session that
saw untrusted content is untrusted content wherever it is read (X9).
"""

from typing import Any
from uuid import UUID

from agents import notes
from agents.builtin_tools.tool import BuiltinTool, Context, Hints
from agents.governance.kits import NOTES
from agents.holding import held_now
from agents.models import Note
from agents.models.notes import LONGEST_NOTE, LONGEST_TITLE
from bonobot.lib.problems import NotFound
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from mcp_servers.labels import Label, bits, labels_in

FOUND_AT_MOST = 20
_TITLE = {"type": "string", "minLength": 1, "maxLength": LONGEST_TITLE}


async def _remember(context: Context, arguments: dict[str, Any]) -> str:
    return await runtime().orm(_write, context, arguments)


def _write(context: Context, arguments: dict[str, Any]) -> str:
    held = held_now(
        context.principal, session_id=context.holding_session, agent_id=_agent_id(context)
    )
    note, added = notes.keep(
        context.organization_id,
        _agent_id(context),
        arguments["title"],
        arguments["text"],
        labels=bits(held),
        by=context.principal.label,
        session_id=context.session_id,
    )
    return f"{'Kept' if added else 'Replaced'} the note {note.title!r}."


async def _search(context: Context, arguments: dict[str, Any]) -> str:
    return await runtime().orm(_found, context, arguments)


def _found(context: Context, arguments: dict[str, Any]) -> str:
    admitted = bits(context.labels)
    found = _matching(_agent_id(context), arguments)
    # One that came between admission and now would bring what nobody decided about.
    shown = [one for one in found if not one.labels & ~admitted]
    if not shown:
        return "No note says anything about that." if arguments.get("query") else "No notes yet."
    return "\n\n".join(f"## {one.title} ({one.updated_at:%Y-%m-%d})\n{one.text}" for one in shown)


def _matching(agent_id: UUID, arguments: dict[str, Any]) -> list[Note]:
    limit = arguments.get("limit", FOUND_AT_MOST // 4)
    return notes.search(agent_id, arguments.get("query", ""), limit=limit)


def _brings(agent_id: UUID, arguments: dict[str, Any]) -> tuple[Label, ...]:
    labels = 0
    for one in _matching(agent_id, arguments):
        labels |= one.labels
    return labels_in(labels)


async def _forget(context: Context, arguments: dict[str, Any]) -> str:
    if not await runtime().orm(notes.forget, _agent_id(context), arguments["title"]):
        raise NotFound(
            say("There is no note {title!r}.", title=arguments["title"]),
            field="title",
            remedy="Take the title from `search_notes`.",
        )
    return f"The note {arguments['title']!r} is gone."


def _agent_id(context: Context) -> UUID:
    if context.agent_id is None:
        raise NotFound("Only agents have notes.", field="agent")
    return context.agent_id


REMEMBER = BuiltinTool(
    name="remember",
    description=say(
        "Keep a note for later sessions under a title; a note of this title is replaced."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "title": _TITLE,
            "text": {"type": "string", "minLength": 1, "maxLength": LONGEST_NOTE},
        },
        "required": ["title", "text"],
        "additionalProperties": False,
    },
    run=_remember,
    kit=NOTES,
    labels=(Label.REPEATABLE,),
    hints=Hints(read_only=False, destructive=True, idempotent=True),
)

SEARCH_NOTES = BuiltinTool(
    name="search_notes",
    description=say(
        "Search the notes that were kept in earlier sessions; without words, the newest."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "query": {"type": "string", "maxLength": 500, "description": "Words to look for."},
            "limit": {"type": "integer", "minimum": 1, "maximum": FOUND_AT_MOST},
        },
        "additionalProperties": False,
    },
    run=_search,
    kit=NOTES,
    labels=(Label.REPEATABLE,),
    brings=_brings,
)

FORGET = BuiltinTool(
    name="forget",
    description=say("Remove a note by its title."),
    input_schema={
        "type": "object",
        "properties": {"title": _TITLE},
        "required": ["title"],
        "additionalProperties": False,
    },
    run=_forget,
    kit=NOTES,
    hints=Hints(read_only=False, destructive=True, idempotent=False),
)
