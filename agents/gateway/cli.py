"""The commands `mcp serve` and `mcp snippet`."""

import argparse
import os
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
    CommandContext,
    CommandVerb,
    build_table,
    expand_variables,
)
from bonobot.core.problems import InvalidInput, NotFound
from bonobot.core.runtime import get_runtime
from mcp_servers.cli.servers import get_server
from mcp_servers.models import Server


def _add_snippet_arguments(parser: argparse.ArgumentParser) -> None:
    target_group = parser.add_mutually_exclusive_group()
    target_group.add_argument("--agent", metavar="SLUG", help="Connect to the tools of this agent")
    target_group.add_argument(
        "--server", metavar="NAME", help="Connect to this server of the organization"
    )
    parser.add_argument(
        "--client", choices=[*CLIENTS], help="Print the configuration for this client"
    )
    parser.add_argument(
        "--token",
        metavar="T",
        help="Token to include. `${VAR}` is read from the environment. Default: none if clients "
        "authorize with OAuth, otherwise a placeholder.",
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


SNIPPET_VERBS = (
    CommandVerb(
        "snippet",
        "Print the configuration for an MCP client",
        _show_snippet,
        arguments=(_add_snippet_arguments,),
        examples=(
            "mcp snippet --agent helper --client claude-code --token '${TOKEN}'",
            "mcp snippet --server time --client cursor",
        ),
    ),
)


BEARER_VARIABLE = "BONOBOT_TOKEN"


def _add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stdio", action="store_true", help="Use standard input and output")
    parser.add_argument(
        "--check", action="store_true", help="Print what a client would find, then exit"
    )
    target_group = parser.add_mutually_exclusive_group()
    target_group.add_argument(
        "--agent", metavar="SLUG", help="Serve the tools, resources, and prompts of this agent"
    )
    target_group.add_argument(
        "--server", metavar="SLUG", help="Serve one server with its original names"
    )


def _serve(cli: CommandContext, options: argparse.Namespace) -> None:
    if not options.stdio and not options.check:
        raise InvalidInput(
            "No transport was specified. Over HTTP, the web process serves MCP at /mcp.",
            field="--stdio",
            remedy="Add --stdio, or start the web process: bonobot up",
        )
    token = os.environ.get(BEARER_VARIABLE, "")
    if not token:
        raise InvalidInput(
            f"The environment variable `{BEARER_VARIABLE}` isn't set.",
            field=BEARER_VARIABLE,
            remedy="Set it to a token. Create one: bonobot tokens create NAME --role ROLE",
        )
    # Imported late: the SDK's server takes a second to load.
    from agents.gateway import transports
    from agents.gateway.routes import GatewayAddress

    address = GatewayAddress("organization")
    if options.agent:
        address = GatewayAddress("agent", options.agent)
    elif options.server:
        address = GatewayAddress("server", options.server)
    if options.check:
        counts = get_runtime().call(transports.count_declarations, token, address)
        cli.emit(counts)
        cli.print_message(", ".join(f"{count} {kind}" for kind, count in counts.items()))
        return
    get_runtime().call(transports.serve_stdio, token, address)


SERVE_VERBS = (
    CommandVerb(
        "serve",
        "Serve MCP to one client over standard input and output",
        _serve,
        arguments=(_add_serve_arguments,),
        examples=(
            "mcp serve --stdio --agent helper      # BONOBOT_TOKEN=bnb_… in the environment",
            "mcp serve --stdio --server github",
            "mcp serve --check --agent helper",
        ),
    ),
)
