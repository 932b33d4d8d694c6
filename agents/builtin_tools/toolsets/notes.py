"""The notes toolset: `remember`, `search_notes` and `forget`.

A note stores the flow labels of the session that wrote it, and reading it adds them to the reading
session.
"""

from typing import Any
from uuid import UUID

from agents import notes
from agents.builtin_tools.toolset_options import NOTES_TOOLSET
from agents.builtin_tools.types import BuiltinTool, BuiltinToolContext, BuiltinToolHints
from agents.flow_labels.services import list_current_labels
from agents.models import Note
from agents.models.notes import MAX_NOTE_LENGTH, MAX_TITLE_LENGTH
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from bonobot.core.runtime import get_runtime
from mcp_servers.flow_labels import FlowLabel, decode_labels, encode_labels

MAX_FOUND = 20
_TITLE_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_TITLE_LENGTH}


async def _handle_remember(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    return await get_runtime().run_orm(_save_note, context, arguments)


def _save_note(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    current_labels = list_current_labels(
        context.principal, session_id=context.label_session_id, agent_id=_require_agent_id(context)
    )
    note, is_new = notes.save_agent_note(
        context.organization_id,
        _require_agent_id(context),
        arguments["title"],
        arguments["text"],
        labels=encode_labels(current_labels),
        written_by=context.principal.label,
        session_id=context.session_id,
    )
    return f"{'Kept' if is_new else 'Replaced'} the note {note.title!r}."


async def _handle_search_notes(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    return await get_runtime().run_orm(_search_notes, context, arguments)


def _search_notes(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    label_bits = encode_labels(context.labels)
    matching_notes = _load_matching_notes(_require_agent_id(context), arguments)
    # A note saved after admission may have labels that weren't part of the decision.
    visible_notes = [note for note in matching_notes if not note.labels & ~label_bits]
    if not visible_notes:
        return "No matching notes." if arguments.get("query") else "No notes yet."
    return "\n\n".join(
        f"## {note.title} ({note.updated_at:%Y-%m-%d})\n{note.text}" for note in visible_notes
    )


def _load_matching_notes(agent_id: UUID, arguments: dict[str, Any]) -> list[Note]:
    limit = arguments.get("limit", MAX_FOUND // 4)
    return notes.search_notes(agent_id, arguments.get("query", ""), limit=limit)


def _collect_labels(agent_id: UUID, arguments: dict[str, Any]) -> tuple[FlowLabel, ...]:
    labels = 0
    for note in _load_matching_notes(agent_id, arguments):
        labels |= note.labels
    return decode_labels(labels)


async def _handle_forget(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    if not await get_runtime().run_orm(
        notes.delete_agent_note, _require_agent_id(context), arguments["title"]
    ):
        raise NotFound(
            format_message("The note {title!r} doesn't exist.", title=arguments["title"]),
            field="title",
            remedy="Use a title from `search_notes`.",
        )
    return f"The note {arguments['title']!r} is gone."


def _require_agent_id(context: BuiltinToolContext) -> UUID:
    if context.agent_id is None:
        raise NotFound("Only agents have notes.", field="agent")
    return context.agent_id


REMEMBER = BuiltinTool(
    name="remember",
    description=format_message(
        "Save a note for later sessions under a title. A note with the same title is replaced."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "title": _TITLE_SCHEMA,
            "text": {"type": "string", "minLength": 1, "maxLength": MAX_NOTE_LENGTH},
        },
        "required": ["title", "text"],
        "additionalProperties": False,
    },
    run=_handle_remember,
    toolset=NOTES_TOOLSET,
    labels=(FlowLabel.REPEATABLE,),
    hints=BuiltinToolHints(read_only=False, destructive=True, idempotent=True),
)

SEARCH_NOTES = BuiltinTool(
    name="search_notes",
    description=format_message(
        "Search the notes saved in earlier sessions. Without a query, return the newest notes."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "query": {"type": "string", "maxLength": 500, "description": "Words to look for."},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_FOUND},
        },
        "additionalProperties": False,
    },
    run=_handle_search_notes,
    toolset=NOTES_TOOLSET,
    labels=(FlowLabel.REPEATABLE,),
    list_result_labels=_collect_labels,
)

FORGET = BuiltinTool(
    name="forget",
    description=format_message("Delete a note by its title."),
    input_schema={
        "type": "object",
        "properties": {"title": _TITLE_SCHEMA},
        "required": ["title"],
        "additionalProperties": False,
    },
    run=_handle_forget,
    toolset=NOTES_TOOLSET,
    hints=BuiltinToolHints(read_only=False, destructive=True, idempotent=False),
)

NOTE_TOOLS = (REMEMBER, SEARCH_NOTES, FORGET)
