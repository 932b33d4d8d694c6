"""The command `mcp logs`."""

import argparse
from typing import Any

from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.servers import get_server
from mcp_servers.models import ErrorOutput, Server
from mcp_servers.stderr_log import list_error_outputs


def _show_logs(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    outputs = list_error_outputs(server)
    cli.emit([_serialize_output(row) for row in outputs])
    for row in outputs:
        state = make_visible(row.ended) if row.ended else "running"
        cli.print_message(
            f"--- {row.created_at:%Y-%m-%d %H:%M:%S} UTC, {make_visible(row.process)}: {state}"
        )
        if row.text and not cli.as_json:
            # Written directly to avoid wrapping; made visible when it was stored.
            cli.out.file.write(row.text.rstrip("\n") + "\n")
    if not outputs:
        cli.print_message(_explain_missing_logs(server))


def _explain_missing_logs(server: Server) -> str:
    if server.transport_type == Server.Transport.HTTP:
        return f"{server.name} uses HTTP and has no local process with error output."
    return f"No recent error output of {server.name}."


def _serialize_output(row: ErrorOutput) -> dict[str, Any]:
    return {
        "started_at": row.created_at,
        "written_at": row.updated_at,
        "process": row.process,
        "ended": row.ended,
        "text": row.text,
    }


VERBS = (
    CommandVerb(
        "logs",
        "Show the latest stderr output of a stdio server's processes and how they ended",
        _show_logs,
        arguments=(Argument("SERVER", "Slug, name, or ID of the server"),),
        examples=("mcp logs time", "mcp logs time --json"),
    ),
)
