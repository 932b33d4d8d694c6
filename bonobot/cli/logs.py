"""`bonobot mcp logs`: what the programs of a stdio server wrote to stderr."""

import argparse
from typing import Any

from bonobot.cli.group import Cli, Verb
from bonobot.cli.servers import find
from bonobot.lib.untrusted import visible
from mcp_servers.models import ErrorOutput, Server
from mcp_servers.outputs import of_server


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")


def _logs(cli: Cli, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    found = of_server(server)
    cli.emit([_as_json(row) for row in found])
    for row in found:
        state = visible(row.ended) if row.ended else "it runs"
        cli.say(f"--- {row.created_at:%Y-%m-%d %H:%M:%S} UTC, {visible(row.process)}: {state}")
        if row.text and not cli.as_json:
            # As it is, not wrapped at any width; it was made visible when it was kept.
            cli.out.file.write(row.text.rstrip("\n") + "\n")
    if not found:
        cli.say(_nothing(server))


def _nothing(server: Server) -> str:
    if server.transport_type == Server.Transport.HTTP:
        return f"{server.name} is reached over HTTP: nothing of it runs here."
    return f"No program of {server.name} has written to stderr in the last days."


def _as_json(row: ErrorOutput) -> dict[str, Any]:
    return {
        "started_at": row.created_at,
        "written_at": row.updated_at,
        "process": row.process,
        "ended": row.ended,
        "text": row.text,
    }


VERBS = (
    Verb(
        "logs",
        "Show what a stdio server's programs wrote to stderr last, and how they ended.",
        _logs,
        _arguments,
        ("mcp logs time", "mcp logs time --json"),
    ),
)
