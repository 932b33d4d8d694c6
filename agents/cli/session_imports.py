"""The command `agents import-session`."""

import argparse
import sys
from pathlib import Path

from agents.cli.agents import get_agent
from agents.sessions.session_import import MAX_FILE_BYTES, import_session, parse_session_file
from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb
from bonobot.core.problems import InvalidInput

STDIN = "-"


def _handle_import(cli: CommandContext, options: argparse.Namespace) -> None:
    agent = get_agent(cli, options.slug)
    session = import_session(cli.principal, agent, parse_session_file(_read_file(options.file)))
    cli.emit({"id": str(session.pk), "agent": agent.slug, "status": session.status})
    cli.print_message(
        f"Imported as session {session.pk}. "
        f"Continue it with: bonobot agents chat {agent.slug} --session {session.pk}"
    )


def _read_file(name: str) -> bytes:
    """Return a file's content, at most one byte more than the limit; raises `InvalidInput`."""
    try:
        if name == STDIN:
            return sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        with Path(name).expanduser().open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidInput(
            f"The file {name!r} can't be read: {error.strerror}.",
            code="unusable_file",
            field="FILE",
            remedy="Specify a file that you can read.",
        ) from None


_IMPORT_ARGUMENTS = (
    Argument("AGENT", "Slug of the agent", dest="slug"),
    Argument("FILE", "JSON export of a session. -: standard input"),
)


VERBS = (
    CommandVerb(
        "import-session",
        "Import an exported session as a finished session of an agent",
        _handle_import,
        arguments=_IMPORT_ARGUMENTS,
        examples=(
            "agents import-session demo session.json",
            "agents import-session demo - < session.json",
        ),
    ),
)
