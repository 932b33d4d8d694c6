"""The command group `notes`: notes that agents keep for later sessions."""

import argparse
from typing import Any

from agents.cli.agents import find
from agents.models import Note
from agents.models.agents import MOST_NOTES
from agents.notes import KEPT_LABELS, NoteSpec, note_of, rank_notes, remove_note, save_note
from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table
from bonobot.core.text.untrusted_text import make_visible

SHOWN = 300


def as_json(note: Note) -> dict[str, Any]:
    """Return the JSON representation of a note."""
    return {
        "id": str(note.pk),
        "title": note.title,
        "text": note.text,
        "labels": [str(label) for label in note.brought],
        "written_by": note.written_by,
        "session_id": str(note.session_id) if note.session_id else None,
        "updated_at": note.updated_at,
    }


def _list(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = find(cli, options.agent).notes.all()[:MOST_NOTES]
    notes = rank_notes(rows, options.search) if options.search else list(rows)
    shown = [
        (n.title, make_visible(n.text, SHOWN), ", ".join(n.brought), n.written_by) for n in notes
    ]
    empty = "No notes. Write one: bonobot notes write AGENT TITLE TEXT"
    drawn = build_table("TITLE", "TEXT", "BRINGS", "BY", rows=shown, empty=empty)
    cli.emit([as_json(note) for note in notes], drawn)


def _write(cli: CommandContext, options: argparse.Namespace) -> None:
    agent = find(cli, options.agent)
    old = agent.notes.filter(title=options.title).first()
    spec = NoteSpec(options.title, options.text, tuple(options.label or ()))
    cli.emit(as_json(save_note(cli.principal, agent, spec, old)))
    cli.say(f"{agent.slug} has the note {make_visible(options.title, SHOWN)!r}.")


def _remove(cli: CommandContext, options: argparse.Namespace) -> None:
    note = note_of(cli.principal, find(cli, options.agent), options.title)
    remove_note(cli.principal, note)
    cli.emit(as_json(note))
    cli.say("The note is gone.")


def _add_agent_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("agent", metavar="AGENT", help="slug of the agent")


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    _add_agent_argument(parser)
    parser.add_argument("--search", metavar="WORDS", help="those that the agent would find")


def _write_arguments(parser: argparse.ArgumentParser) -> None:
    _add_agent_argument(parser)
    parser.add_argument("title", metavar="TITLE", help="a note of this title is replaced")
    parser.add_argument("text", metavar="TEXT")
    parser.add_argument(
        "--label",
        action="append",
        choices=[str(label) for label in KEPT_LABELS],
        help="what reading it brings; may be given twice",
    )


def _remove_arguments(parser: argparse.ArgumentParser) -> None:
    _add_agent_argument(parser)
    parser.add_argument("title", metavar="TITLE", help="title or id")


VERBS = (
    CommandVerb(
        "list",
        "List the notes of an agent.",
        _list,
        _list_arguments,
        ("notes list helper", "notes list helper --search 'release day' --json"),
    ),
    CommandVerb(
        "write",
        "Write a note for an agent, or replace the one of this title.",
        _write,
        _write_arguments,
        ("notes write helper 'Release day' 'Releases go out on Tuesdays.'",),
    ),
    CommandVerb(
        "remove",
        "Remove a note of an agent.",
        _remove,
        _remove_arguments,
        ("notes remove helper 'Release day'",),
    ),
)
