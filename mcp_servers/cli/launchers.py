"""The commands `mcp launchers`, `add-launcher` and `remove-launcher`."""

import argparse
from typing import Any

from django.conf import settings

from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb
from bonobot.core.cli.text_table import build_table
from bonobot.core.problems import NotFound
from mcp_servers.launchers import create_launcher, delete_launcher
from mcp_servers.models import Launcher


def _serialize_launcher(launcher: Launcher) -> dict[str, Any]:
    return {"command": launcher.command, "note": launcher.note, "from": "added"}


def _list_launchers(cli: CommandContext, options: argparse.Namespace) -> None:
    _ = cli.principal  # raises if the organization doesn't exist
    configured = [
        {"command": name, "note": "", "from": "BONOBOT_LAUNCHERS"}
        for name in settings.BONOBOT_LAUNCHERS
    ]
    launchers = [
        *configured,
        *(_serialize_launcher(launcher) for launcher in Launcher.objects.all()),
    ]
    rows = [(launcher["command"], launcher["from"], launcher["note"]) for launcher in launchers]
    cli.emit(
        launchers,
        build_table("PROGRAM", "SOURCE", "NOTE", rows=rows, empty="No launchers are allowed."),
    )


def _create_launcher(cli: CommandContext, options: argparse.Namespace) -> None:
    launcher = Launcher(command=options.program, note=options.note)
    if Launcher.objects.filter(command=launcher.command).exists():
        launcher = Launcher.objects.get(command=launcher.command)
    else:
        create_launcher(cli.principal, launcher)
    cli.emit(_serialize_launcher(launcher))
    cli.print_message(f"Servers can now be started with {launcher.command}.")


def _delete_launcher(cli: CommandContext, options: argparse.Namespace) -> None:
    launcher = Launcher.objects.filter(command=options.program).first()
    if launcher is None:
        raise NotFound(
            f"{options.program!r} isn't a launcher that was added.",
            field="PROGRAM",
            remedy="List the launchers: bonobot mcp launchers. Launchers from BONOBOT_LAUNCHERS "
            "can only be removed in that setting.",
        )
    serialized = _serialize_launcher(launcher)
    delete_launcher(cli.principal, launcher)
    cli.emit(serialized)
    cli.print_message(
        f"{serialized['command']} was removed. Servers that use it can no longer be started."
    )


_PROGRAM_ARGUMENT = (Argument("PROGRAM", "Program name on PATH, or an absolute path"),)


_CREATE_ARGUMENTS = (
    *_PROGRAM_ARGUMENT,
    Argument("--note NOTE", "Note shown in the list", default=""),
)


VERBS = (
    CommandVerb(
        "launchers",
        "List the programs that can start stdio servers",
        _list_launchers,
        examples=("mcp launchers",),
    ),
    CommandVerb(
        "add-launcher",
        "Allow a program to start stdio servers",
        _create_launcher,
        arguments=_CREATE_ARGUMENTS,
        examples=("mcp add-launcher deno", "mcp add-launcher /opt/mcp/bin/server --note 'our own'"),
    ),
    CommandVerb(
        "remove-launcher",
        "Remove a launcher that was added",
        _delete_launcher,
        arguments=_PROGRAM_ARGUMENT,
        examples=("mcp remove-launcher deno",),
        confirmation="Remove the launcher {program}?",
    ),
)
