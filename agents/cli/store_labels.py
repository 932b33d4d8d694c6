"""The commands `store-labels` and `clear-store-labels` of servers and agents."""

import argparse

from agents.cli.agents import find as find_agent
from agents.flow_labels.agent_stores import clear_agent_stores, list_agent_stores
from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.servers import find
from mcp_servers.flow_labels.store_labels import (
    WrittenLabels,
    clear_store_labels,
    list_written_labels,
    store_labels_of,
)
from mcp_servers.models import Server


def _show_server(cli: CommandContext, options: argparse.Namespace) -> None:
    _print_server(cli, find(cli, options.server))


def _clear_server(cli: CommandContext, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    clear_store_labels(cli.principal, server)
    _print_server(cli, server)


def _print_server(cli: CommandContext, server: Server) -> None:
    labels, written = store_labels_of(server), list_written_labels(server)
    cli.emit(
        {
            "server": server.slug,
            "labels": [*labels],
            "written": [_as_json(one) for one in written],
        }
    )
    cli.say(f"What {server.name} keeps carries {', '.join(labels) or 'no labels'}.")
    if written and not cli.as_json:
        lines = [
            (
                f"{one.created_at:%Y-%m-%d %H:%M}",
                ", ".join(one.labels),
                make_visible(one.tool, 60),
                make_visible(one.caller, 60),
                one.cleared_by and f"cleared by {make_visible(one.cleared_by, 60)}",
            )
            for one in written
        ]
        cli.out.print(build_table("WRITTEN", "LABELS", "TOOL", "BY", "", rows=lines, empty=""))


def _as_json(one: WrittenLabels) -> dict[str, object]:
    return {
        "labels": [*one.labels],
        "call_id": str(one.call_id),
        "session_id": str(one.session_id) if one.session_id else None,
        "tool": one.tool,
        "caller": one.caller,
        "created_at": one.created_at.isoformat(),
        "cleared_at": one.cleared_at.isoformat() if one.cleared_at else None,
        "cleared_by": one.cleared_by,
    }


def _show_agent(cli: CommandContext, options: argparse.Namespace) -> None:
    agent = find_agent(cli, options.slug)
    stores = list_agent_stores(agent)
    found = [{"name": one.name, "labels": [*one.labels]} for one in stores]
    cli.emit({"agent": agent.slug, "stores": found})
    for one in stores:
        cli.say(f"{agent.slug}, {one.name}: {', '.join(one.labels) or 'no labels'}")


def _clear_agent(cli: CommandContext, options: argparse.Namespace) -> None:
    clear_agent_stores(cli.principal, find_agent(cli, options.slug))
    _show_agent(cli, options)


def _server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")


def _slug(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG")


SHOW = "Show which flow labels {} carry from sessions that wrote there."
CLEAR = "Clear the flow labels that {} carry; audited."
SERVER, AGENT = "a server's data", "an agent's notes and workspace"
OF_SERVERS = (
    CommandVerb(
        *("store-labels", SHOW.format(SERVER), _show_server, _server),
        ("mcp store-labels memory",),
    ),
    CommandVerb(
        *("clear-store-labels", CLEAR.format(SERVER), _clear_server, _server),
        ("mcp clear-store-labels memory",),
    ),
)
OF_AGENTS = (
    CommandVerb(
        *("store-labels", SHOW.format(AGENT), _show_agent, _slug), ("agents store-labels demo",)
    ),
    CommandVerb(
        *("clear-store-labels", CLEAR.format(AGENT), _clear_agent, _slug),
        ("agents clear-store-labels demo",),
    ),
)
