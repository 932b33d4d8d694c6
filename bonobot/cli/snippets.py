"""`bonobot mcp snippet`: what other programs are told to reach the gateway."""

import argparse
from dataclasses import asdict

from django.conf import settings

from agents.models import Agent
from bonobot.cli.group import Cli, Verb, expand, table
from bonobot.cli.servers import find
from bonobot.gateway.snippets import (
    CLIENTS,
    ROOT,
    Target,
    agent_path,
    server_path,
    snippet,
    snippets,
    target,
)
from bonobot.lib.problems import NotFound
from mcp_servers.models import Server


def _arguments(parser: argparse.ArgumentParser) -> None:
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--agent", metavar="SLUG", help="the tools of this agent")
    place.add_argument("--server", metavar="NAME", help="this server of the pool")
    parser.add_argument("--client", choices=[*CLIENTS], help="print what this program is told")
    parser.add_argument(
        "--token",
        metavar="T",
        help="write it in, `${VAR}` is filled; default: none where people let programs in, "
        "else a placeholder",
    )


def _snippet(cli: Cli, options: argparse.Namespace) -> None:
    about = _target(cli, options)
    if options.client:
        found = snippet(options.client, about)
        cli.emit(asdict(found))
        cli.say(found.text.rstrip("\n"))
        if not cli.as_json and (found.file or found.note):
            told = ". ".join(one.rstrip(".") for one in (found.file, found.note) if one)
            cli.err.print(f"→ {told}", style="dim", markup=False)
        return
    every = snippets(about)
    rows = [(one.client, one.title, one.file or "a command") for one in every]
    cli.emit(
        [asdict(one) for one in every], table("CLIENT", "PROGRAM", "WHERE", rows=rows, empty="")
    )
    cli.say(f"{about.url}  One of them: bonobot mcp snippet --client {every[0].client}")


def _target(cli: Cli, options: argparse.Namespace) -> Target:
    organization_id, path = cli.principal.organization_id, ROOT
    if options.agent:
        path = agent_path(Agent.objects.get_or_404(organization_id, slug=options.agent).slug)
    elif options.server:
        path = server_path(_pooled(cli, options.server).slug)
    token = expand(options.token, "--token") if options.token else ""
    return target(settings.BONOBOT_URL, path, token, signs_in=settings.BONOBOT_OAUTH)


def _pooled(cli: Cli, name: str) -> Server:
    server = find(cli, name)
    if server.scope_id != server.organization_id:
        raise NotFound(
            f"The server {server.name!r} is private to an agent.",
            field="--server",
            remedy="Name the agent instead: its tools are at the agent's address.",
        )
    return server


VERBS = (
    Verb(
        "snippet",
        "Print what a program is told to reach the gateway.",
        _snippet,
        _arguments,
        (
            "mcp snippet --agent helper --client claude-code --token '${TOKEN}'",
            "mcp snippet --server time --client cursor",
        ),
    ),
)
