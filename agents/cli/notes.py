"""The command group `notes`: notes that agents keep for later sessions."""

import argparse
from typing import Any

from agents.cli.agents import get_agent
from agents.models import Note
from agents.models.notes import MAX_NOTES
from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb, add_arguments
from bonobot.core.cli.text_table import build_table
from bonobot.core.text.untrusted_text import make_visible

MAX_TEXT_SHOWN = 300


def serialize_note(note: Note) -> dict[str, Any]:
    return {
        "id": str(note.pk),
        "title": note.title,
        "text": note.text,
        "labels": [str(label) for label in note.flow_labels],
        "written_by": note.written_by,
        "session_id": str(note.session_id) if note.session_id else None,
        "updated_at": note.updated_at,
    }


def _list_notes(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.notes import rank_notes

    rows = get_agent(cli, options.agent).notes.all()[:MAX_NOTES]
    notes = rank_notes(rows, options.search) if options.search else list(rows)
    table_rows = [
        (n.title, make_visible(n.text, MAX_TEXT_SHOWN), ", ".join(n.flow_labels), n.written_by)
        for n in notes
    ]
    empty = "No notes. Create one: bonobot notes write AGENT TITLE TEXT"
    table = build_table("TITLE", "TEXT", "FLOW LABELS", "WRITTEN BY", rows=table_rows, empty=empty)
    cli.emit([serialize_note(note) for note in notes], table)


def _write_note(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.notes import NoteSpec, save_note

    agent = get_agent(cli, options.agent)
    existing_note = agent.notes.filter(title=options.title).first()
    spec = NoteSpec(options.title, options.text, tuple(options.label or ()))
    cli.emit(serialize_note(save_note(cli.principal, agent, spec, existing_note)))
    cli.print_message("The note was saved.")


def _delete_note(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.notes import delete_note, get_note

    note = get_note(cli.principal, get_agent(cli, options.agent), options.title)
    delete_note(cli.principal, note)
    cli.emit(serialize_note(note))
    cli.print_message("The note was deleted.")


_AGENT_ARGUMENT = (Argument("AGENT", "Slug of the agent"),)


_LIST_ARGUMENTS = (
    *_AGENT_ARGUMENT,
    Argument("--search WORDS", "Only notes that an agent finds with this search"),
)


def _add_write_arguments(parser: argparse.ArgumentParser) -> None:
    from agents.notes import NOTE_LABELS

    add_arguments(parser, _AGENT_ARGUMENT)
    parser.add_argument(
        "title", metavar="TITLE", help="Title. A note with the same title is replaced."
    )
    parser.add_argument("text", metavar="TEXT", help="Content of the note")
    parser.add_argument(
        "--label",
        action="append",
        choices=[str(label) for label in NOTE_LABELS],
        help="Flow label that the session gets when it reads the note. Repeatable",
    )


_NOTE_ARGUMENTS = (
    *_AGENT_ARGUMENT,
    Argument("TITLE", "Title or ID of the note"),
)


VERBS = (
    CommandVerb(
        "list",
        "List the notes of an agent",
        _list_notes,
        arguments=_LIST_ARGUMENTS,
        examples=("notes list helper", "notes list helper --search 'release day' --json"),
    ),
    CommandVerb(
        "write",
        "Create a note for an agent, or replace the note with the same title",
        _write_note,
        arguments=(_add_write_arguments,),
        examples=("notes write helper 'Release day' 'Releases go out on Tuesdays.'",),
    ),
    CommandVerb(
        "remove",
        "Delete a note of an agent",
        _delete_note,
        arguments=_NOTE_ARGUMENTS,
        examples=("notes remove helper 'Release day'",),
        confirmation="Delete the note {title}?",
    ),
)
