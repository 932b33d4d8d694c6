"""`bonobot mcp launchers|add-launcher|remove-launcher`: which programs may start stdio servers."""

import argparse
from typing import Any

from django.conf import settings

from bonobot.cli.group import Cli, Verb, table
from bonobot.lib.problems import NotFound
from mcp_servers.launching import add_launcher, remove_launcher
from mcp_servers.models import Launcher


def _as_json(launcher: Launcher) -> dict[str, Any]:
    return {"command": launcher.command, "note": launcher.note, "from": "added"}


def _list(cli: Cli, options: argparse.Namespace) -> None:
    _ = cli.principal  # an organization that isn't there is refused here, too
    set_by = [
        {"command": name, "note": "", "from": "BONOBOT_LAUNCHERS"}
        for name in settings.BONOBOT_LAUNCHERS
    ]
    found = [*set_by, *(_as_json(one) for one in Launcher.objects.all())]
    rows = [(one["command"], one["from"], one["note"]) for one in found]
    cli.emit(found, table("PROGRAM", "FROM", "NOTE", rows=rows, empty="No program may be started."))


def _add(cli: Cli, options: argparse.Namespace) -> None:
    launcher = Launcher(command=options.program, note=options.note)
    if Launcher.objects.filter(command=launcher.command).exists():
        launcher = Launcher.objects.get(command=launcher.command)
    else:
        add_launcher(cli.principal, launcher)
    cli.emit(_as_json(launcher))
    cli.say(f"Servers may be started with {launcher.command}.")


def _remove(cli: Cli, options: argparse.Namespace) -> None:
    launcher = Launcher.objects.filter(command=options.program).first()
    if launcher is None:
        raise NotFound(
            f"{options.program!r} was not added to the list.",
            field="PROGRAM",
            remedy="`bonobot mcp launchers` shows them; those of BONOBOT_LAUNCHERS are set there.",
        )
    shown = _as_json(launcher)
    remove_launcher(cli.principal, launcher)
    cli.emit(shown)
    cli.say(f"{shown['command']} is off the list: servers that use it can't be started any more.")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    _program(parser)
    parser.add_argument("--note", default="", help="why, for those who read the list")


def _program(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="PROGRAM", help="a name on the path, or an absolute one")


VERBS = (
    Verb(
        "launchers",
        "List the programs that stdio servers may be started with.",
        _list,
        examples=("mcp launchers",),
    ),
    Verb(
        "add-launcher",
        "Let stdio servers be started with a program.",
        _add,
        _add_arguments,
        ("mcp add-launcher deno", "mcp add-launcher /opt/mcp/bin/server --note 'our own'"),
    ),
    Verb(
        "remove-launcher",
        "Take a program off the list.",
        _remove,
        _program,
        ("mcp remove-launcher deno",),
    ),
)
