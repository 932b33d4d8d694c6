"""The command `mcp snippet`."""

import argparse
from dataclasses import asdict

from django.conf import settings

from agents.gateway.client_config_snippets import (
    CLIENTS,
    ROOT_PATH,
    SnippetTarget,
    build_agent_path,
    build_server_path,
    build_snippet,
    build_snippets,
    build_target,
)
from agents.models import Agent
from bonobot.core.cli.command_group import (
    Alternatives,
    Argument,
    CommandContext,
    CommandVerb,
    expand_variables,
)
from bonobot.core.cli.text_table import build_table
from bonobot.core.problems import NotFound
from mcp_servers.cli.servers import get_server
from mcp_servers.models import Server

_SNIPPET_ARGUMENTS = (
    Alternatives(
        Argument("--agent SLUG", "Connect to the tools of this agent"),
        Argument("--server NAME", "Connect to this server of the organization"),
    ),
    Argument("--client", "Print the configuration for this client", choices=[*CLIENTS]),
    Argument(
        "--token T",
        "Token to include. `${VAR}` is read from the environment. Default: none if clients "
        "authorize with OAuth, otherwise a placeholder.",
    ),
)


def _show_snippet(cli: CommandContext, options: argparse.Namespace) -> None:
    target = _build_target(cli, options)
    if options.client:
        snippet = build_snippet(options.client, target)
        cli.emit(asdict(snippet))
        cli.print_message(snippet.text.rstrip("\n"))
        if not cli.as_json and (snippet.file or snippet.note or snippet.link):
            items = (snippet.file, snippet.note, snippet.link)
            notes = ". ".join(item.rstrip(".") for item in items if item)
            cli.err.print(f"→ {notes}", style="dim", markup=False)
        return
    snippets = build_snippets(target)
    rows = [(item.client, item.title, item.file or "command") for item in snippets]
    cli.emit(
        [asdict(item) for item in snippets],
        build_table("CLIENT", "NAME", "FILE", rows=rows, empty=""),
    )
    cli.print_message(
        f"{target.url}  For example: bonobot mcp snippet --client {snippets[0].client}"
    )


def _build_target(cli: CommandContext, options: argparse.Namespace) -> SnippetTarget:
    organization_id, path = cli.principal.organization_id, ROOT_PATH
    if options.agent:
        path = build_agent_path(Agent.objects.get_or_404(organization_id, slug=options.agent).slug)
    elif options.server:
        path = build_server_path(_get_pool_server(cli, options.server).slug)
    token = expand_variables(options.token, "--token") if options.token else ""
    return build_target(settings.BONOBOT_URL, path, token, uses_oauth=settings.BONOBOT_OAUTH)


def _get_pool_server(cli: CommandContext, name: str) -> Server:
    server = get_server(cli, name)
    if server.scope_id != server.organization_id:
        raise NotFound(
            f"The server {server.name!r} is private to an agent.",
            field="--server",
            remedy="Use --agent instead. The agent's URL includes its tools.",
        )
    return server


VERBS = (
    CommandVerb(
        "snippet",
        "Print the configuration for an MCP client",
        _show_snippet,
        arguments=_SNIPPET_ARGUMENTS,
        examples=(
            "mcp snippet --agent helper --client claude-code --token '${TOKEN}'",
            "mcp snippet --server time --client cursor",
        ),
    ),
)
