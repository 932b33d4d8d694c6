"""The flow labels of agents and tokens, and of the data that servers and agents store.

The commands `flow-labels`, `clear-flow-labels`, `store-labels`, and `clear-store-labels`.
"""

import argparse

from agents.cli.agents import get_agent
from agents.flow_labels.services import (
    clear_agent_labels,
    clear_agent_stores,
    clear_token_labels,
    list_agent_labels,
    list_agent_stores,
    list_token_labels,
)
from bonobot.accounts.models import Token
from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb
from bonobot.core.cli.text_table import build_table
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.servers import get_server
from mcp_servers.flow_labels.store_labels import (
    WrittenLabels,
    clear_store_labels,
    list_written_labels,
    load_server_store,
)
from mcp_servers.models import Server


def _show_agent_labels(cli: CommandContext, options: argparse.Namespace) -> None:
    agent = get_agent(cli, options.slug)
    _show_labels(cli, agent.slug, list_agent_labels(agent))


def _clear_agent_labels(cli: CommandContext, options: argparse.Namespace) -> None:
    agent = get_agent(cli, options.slug)
    clear_agent_labels(cli.principal, agent)
    _show_labels(cli, agent.slug, list_agent_labels(agent))


def _show_token_labels(cli: CommandContext, options: argparse.Namespace) -> None:
    token = cli.get_row(Token, key=options.key)
    _show_labels(cli, token.name, list_token_labels(token))


def _clear_token_labels(cli: CommandContext, options: argparse.Namespace) -> None:
    token = cli.get_row(Token, key=options.key)
    clear_token_labels(cli.principal, token)
    _show_labels(cli, token.name, list_token_labels(token))


def _show_labels(cli: CommandContext, name: str, labels: tuple[str, ...]) -> None:
    label_names = [str(label) for label in labels]
    cli.emit({"name": name, "flow_labels": label_names})
    cli.print_message(
        f"Flow labels of {name} from calls without a session: {', '.join(label_names) or 'none'}."
    )


_SLUG_ARGUMENT = (Argument("SLUG", "Slug of the agent"),)


_KEY_ARGUMENT = (Argument("KEY", "Public key of the token, as shown by `tokens list`"),)


SHOW_HELP = "Show the flow labels of {} from calls without a session"
CLEAR_HELP = "Clear the flow labels of {} from calls without a session. Recorded in the audit log."
OF_AGENTS = (
    CommandVerb(
        "flow-labels",
        SHOW_HELP.format("an agent"),
        _show_agent_labels,
        arguments=_SLUG_ARGUMENT,
        examples=("agents flow-labels demo",),
    ),
    CommandVerb(
        *(
            "clear-flow-labels",
            CLEAR_HELP.format("an agent and its tokens"),
            _clear_agent_labels,
            _SLUG_ARGUMENT,
        ),
        ("agents clear-flow-labels demo",),
    ),
)
OF_TOKENS = (
    CommandVerb(
        "flow-labels",
        SHOW_HELP.format("a token"),
        _show_token_labels,
        arguments=_KEY_ARGUMENT,
        examples=("tokens flow-labels 1a2b3c4d5e6f",),
    ),
    CommandVerb(
        *(
            "clear-flow-labels",
            CLEAR_HELP.format("a token"),
            _clear_token_labels,
            _KEY_ARGUMENT,
        ),
        ("tokens clear-flow-labels 1a2b3c4d5e6f",),
    ),
)


def _show_server_labels(cli: CommandContext, options: argparse.Namespace) -> None:
    _print_server_labels(cli, get_server(cli, options.server))


def _clear_server_labels(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    clear_store_labels(cli.principal, server)
    _print_server_labels(cli, server)


def _print_server_labels(cli: CommandContext, server: Server) -> None:
    store, written_labels = load_server_store(server), list_written_labels(server)
    labels = store.labels
    cli.emit(
        {
            "server": server.slug,
            "labels": [*labels],
            "written_at": store.written_at.isoformat() if store.written_at else None,
            "written": [_serialize_written_labels(entry) for entry in written_labels],
        }
    )
    cli.print_message(f"Flow labels of the data in {server.name}: {', '.join(labels) or 'none'}.")
    if written_labels and not cli.as_json:
        lines = [
            (
                f"{entry.created_at:%Y-%m-%d %H:%M}",
                ", ".join(entry.labels),
                make_visible(entry.tool, 60),
                make_visible(entry.caller, 60),
                entry.cleared_by and f"cleared by {make_visible(entry.cleared_by, 60)}",
            )
            for entry in written_labels
        ]
        cli.out.print(
            build_table("WRITTEN", "FLOW LABELS", "TOOL", "CALLER", "", rows=lines, empty="")
        )


def _serialize_written_labels(entry: WrittenLabels) -> dict[str, object]:
    return {
        "labels": [*entry.labels],
        "call_id": str(entry.call_id),
        "session_id": str(entry.session_id) if entry.session_id else None,
        "tool": entry.tool,
        "caller": entry.caller,
        "created_at": entry.created_at.isoformat(),
        "cleared_at": entry.cleared_at.isoformat() if entry.cleared_at else None,
        "cleared_by": entry.cleared_by,
    }


def _show_agent_stores(cli: CommandContext, options: argparse.Namespace) -> None:
    agent = get_agent(cli, options.slug)
    stores = list_agent_stores(agent)
    serialized = [
        {
            "name": store.name,
            "labels": [*store.labels],
            "written_at": store.written_at.isoformat() if store.written_at else None,
        }
        for store in stores
    ]
    cli.emit({"agent": agent.slug, "stores": serialized})
    for store in stores:
        cli.print_message(f"{agent.slug}, {store.name}: {', '.join(store.labels) or 'none'}")


def _clear_agent_stores(cli: CommandContext, options: argparse.Namespace) -> None:
    clear_agent_stores(cli.principal, get_agent(cli, options.slug))
    _show_agent_stores(cli, options)


_SERVER_ARGUMENT = (Argument("SERVER", "Slug, name, or ID of the server"),)


SHOW_STORES_HELP = "Show the flow labels of {}, set by sessions that wrote to them"
CLEAR_STORES_HELP = "Clear the flow labels of {}. Recorded in the audit log."
SERVER, AGENT = "the data in a server", "an agent's notes and workspace"
STORES_OF_SERVERS = (
    CommandVerb(
        *("store-labels", SHOW_STORES_HELP.format(SERVER), _show_server_labels, _SERVER_ARGUMENT),
        ("mcp store-labels memory",),
    ),
    CommandVerb(
        *(
            "clear-store-labels",
            CLEAR_STORES_HELP.format(SERVER),
            _clear_server_labels,
            _SERVER_ARGUMENT,
        ),
        ("mcp clear-store-labels memory",),
    ),
)
STORES_OF_AGENTS = (
    CommandVerb(
        *("store-labels", SHOW_STORES_HELP.format(AGENT), _show_agent_stores, _SLUG_ARGUMENT),
        ("agents store-labels demo",),
    ),
    CommandVerb(
        *(
            "clear-store-labels",
            CLEAR_STORES_HELP.format(AGENT),
            _clear_agent_stores,
            _SLUG_ARGUMENT,
        ),
        ("agents clear-store-labels demo",),
    ),
)
