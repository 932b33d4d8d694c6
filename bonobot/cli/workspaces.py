"""`bonobot agents tools` and `workspace`: an agent's built-in tools and the folder they work in."""

import argparse
import json
from typing import Any

from agents.governance.kits import KITS, completed
from agents.models import Agent
from agents.registration import AgentSpec, alter_agent
from agents.toolboxes import empty_workspace, workspace_shown
from bonobot.cli.group import Cli, Verb, table
from bonobot.lib.problems import Invalid


def _find(cli: Cli, slug: str) -> Agent:
    found: Agent = Agent.objects.get_or_404(cli.principal.organization_id, slug=slug)
    return found


def _tools_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG")
    parser.add_argument("--on", metavar="KIT", action="append", default=[], choices=[*KITS])
    parser.add_argument("--off", metavar="KIT", action="append", default=[], choices=[*KITS])
    parser.add_argument(
        "--set",
        metavar="KIT.OPTION=VALUE",
        action="append",
        default=[],
        help="an option of a kit that is on; VALUE is JSON, lists may be written a,b",
    )


def _tools(cli: Cli, options: argparse.Namespace) -> None:
    agent = _find(cli, options.slug)
    kits = {name: dict(said) for name, said in agent.builtin_tools.items()}
    for name in options.on:
        kits.setdefault(name, {})
    for name in options.off:
        kits.pop(name, None)
    for text in options.set:
        name, option, value = _setting(text)
        kits.setdefault(name, {})[option] = value
    if kits != agent.builtin_tools:
        alter_agent(cli.principal, agent, AgentSpec(name=agent.name, builtin_tools=kits))
    on = completed(agent.builtin_tools)
    found = [
        {
            "kit": kit.name,
            "on": kit.name in on,
            "options": dict(on.get(kit.name, kit.usual)),
            "about": kit.about,
        }
        for kit in KITS.values()
    ]
    rows = [(f["kit"], "on" if f["on"] else "off", _said(f), f["about"]) for f in found]
    cli.emit(found, table("KIT", "", "OPTIONS", "WHAT IT DOES", rows=rows, empty=""))


def _said(kit: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in kit["options"].items())


def _shown(value: Any) -> str:
    return ",".join(value) if isinstance(value, list | tuple) else json.dumps(value)


def _setting(text: str) -> tuple[str, str, Any]:
    """Return the kit, the option and its value; raises `Invalid`."""
    where, equals, said = text.partition("=")
    name, dot, option = where.partition(".")
    if not equals or not dot or name not in KITS:
        raise Invalid(
            f"{text!r} sets nothing.",
            field="--set",
            remedy="Write KIT.OPTION=VALUE, such as shell.time_s=120.",
        )
    known = KITS[name].option(option)
    if known is not None and known.kind == "texts":
        return name, option, [one.strip() for one in said.split(",") if one.strip()]
    try:
        return name, option, json.loads(said)
    except ValueError:
        return name, option, said


def _workspace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG")
    deeds = parser.add_mutually_exclusive_group()
    deeds.add_argument("--attach", metavar="DIR", help="let it work in a folder of this host")
    deeds.add_argument("--detach", action="store_true", help="give it its own folder again")
    deeds.add_argument("--empty", action="store_true", help="delete all that is in its own folder")
    parser.add_argument("--mib", type=int, metavar="N", help="how much its own folder may hold")
    parser.add_argument("--files", type=int, metavar="N", help="how many files and folders")


def _workspace(cli: Cli, options: argparse.Namespace) -> None:
    agent = _find(cli, options.slug)
    folder = "" if options.detach else options.attach
    if (folder, options.mib, options.files) != (None, None, None):
        spec = AgentSpec(
            name=agent.name,
            workspace_folder=folder,
            workspace_mib=options.mib,
            workspace_files=options.files,
        )
        alter_agent(cli.principal, agent, spec)
    if options.empty:
        empty_workspace(cli.principal, agent)
    found = workspace_shown(agent)
    rows = [(name.replace("_", " "), _worth(value)) for name, value in found.items()]
    cli.emit(found, table("WORKSPACE", "", rows=rows, empty=""))


def _worth(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else value or "–"


VERBS = (
    Verb(
        "tools",
        "Show or change which built-in tools an agent has.",
        _tools,
        _tools_arguments,
        (
            "agents tools demo",
            "agents tools demo --on filesystem --on search --set filesystem.read_only=true",
            "agents tools demo --on fetch --set fetch.hosts=docs.example.com,*.example.org",
            "agents tools demo --off shell",
        ),
    ),
    Verb(
        "workspace",
        "Show or change the folder that an agent's built-in tools work in.",
        _workspace,
        _workspace_arguments,
        (
            "agents workspace demo",
            "agents workspace demo --attach /srv/project",
            "agents workspace demo --detach --mib 512",
            "agents workspace demo --empty",
        ),
    ),
)
