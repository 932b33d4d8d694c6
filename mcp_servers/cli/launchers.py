"""The commands `mcp launchers`, `add-launcher` and `remove-launcher`."""

import argparse
from typing import Any

from django.conf import settings

from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table
from bonobot.core.problems import NotFound
from mcp_servers.models import Launcher
from mcp_servers.services import create_launcher, delete_launcher


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
        build_table("PROGRAM", "FROM", "NOTE", rows=rows, empty="No program may be started."),
    )


def _create_launcher(cli: CommandContext, options: argparse.Namespace) -> None:
    launcher = Launcher(command=options.program, note=options.note)
    if Launcher.objects.filter(command=launcher.command).exists():
        launcher = Launcher.objects.get(command=launcher.command)
    else:
        create_launcher(cli.principal, launcher)
    cli.emit(_serialize_launcher(launcher))
    cli.print_message(f"Servers may be started with {launcher.command}.")


def _delete_launcher(cli: CommandContext, options: argparse.Namespace) -> None:
    launcher = Launcher.objects.filter(command=options.program).first()
    if launcher is None:
        raise NotFound(
            f"{options.program!r} was not added to the list.",
            field="PROGRAM",
            remedy="`bonobot mcp launchers` shows them; those of BONOBOT_LAUNCHERS are set there.",
        )
    serialized = _serialize_launcher(launcher)
    delete_launcher(cli.principal, launcher)
    cli.emit(serialized)
    cli.print_message(
        f"{serialized['command']} is off the list: servers that use it can't be started any more."
    )


def _add_create_arguments(parser: argparse.ArgumentParser) -> None:
    _add_program_argument(parser)
    parser.add_argument("--note", default="", help="why, for those who read the list")


def _add_program_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="PROGRAM", help="a name on the path, or an absolute one")


VERBS = (
    CommandVerb(
        "launchers",
        "List the programs that stdio servers may be started with.",
        _list_launchers,
        examples=("mcp launchers",),
    ),
    CommandVerb(
        "add-launcher",
        "Let stdio servers be started with a program.",
        _create_launcher,
        _add_create_arguments,
        ("mcp add-launcher deno", "mcp add-launcher /opt/mcp/bin/server --note 'our own'"),
    ),
    CommandVerb(
        "remove-launcher",
        "Take a program off the list.",
        _delete_launcher,
        _add_program_argument,
        ("mcp remove-launcher deno",),
    ),
)
