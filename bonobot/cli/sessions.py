"""`bonobot agents sessions|cancel`: what agents are at, and an end to it."""

import argparse
from typing import Any

from agents.models import Agent, Session
from agents.sessions.requests import cancel
from bonobot.cli.group import Cli, Verb, table
from bonobot.cli.running import find

LISTED = 100
NUMBERS = ("turns", "calls", "input_tokens", "output_tokens", "cost_microusd")


def as_json(session: Session) -> dict[str, Any]:
    """Return a session as programs read it."""
    return {
        "id": str(session.pk),
        "agent": session.agent.slug,
        "title": session.title,
        "status": session.status,
        "error_code": session.error_code,
        "started_by": session.started_by,
        **{name: getattr(session, name) for name in NUMBERS},
        "created_at": session.created_at,
        "finished_at": session.finished_at,
    }


def _list(cli: Cli, options: argparse.Namespace) -> None:
    rows = Session.objects.visible_to(cli.principal).select_related("agent")
    if options.slug:
        rows = rows.filter(agent=Agent.objects.named(cli.principal, options.slug))
    if options.status:
        rows = rows.filter(status=options.status)
    found = [as_json(row) for row in rows.order_by("-created_at", "-pk")[:LISTED]]
    names = ("id", "agent", "status", "title", "started_by", "calls")
    shown = [(f"{one['created_at']:%m-%d %H:%M}", *(one[name] for name in names)) for one in found]
    columns = ("WHEN", "ID", "AGENT", "STATUS", "ABOUT", "BY", "CALLS")
    empty = 'There is none. Begin one: bonobot agents run SLUG "text"'
    cli.emit(found, table(*columns, rows=shown, empty=empty))


def _cancel(cli: Cli, options: argparse.Namespace) -> None:
    session = find(cli, options.session)
    wanted = cancel(cli.principal, session)
    cli.emit({"id": str(session.pk), "cancelled": wanted})
    cli.say("It is being cancelled." if wanted else "There was nothing to cancel: it has ended.")


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG", nargs="?", help="only those of this agent")
    parser.add_argument("--status", choices=Session.Status.values, help="only those in it")


def _cancel_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", metavar="SESSION", help="its id")


VERBS = (
    Verb(
        "sessions",
        f"List the latest {LISTED} sessions.",
        _list,
        _list_arguments,
        ("agents sessions", "agents sessions demo --status waiting --json"),
    ),
    Verb(
        "cancel",
        "Cancel what a session does; a message sent later begins anew.",
        _cancel,
        _cancel_arguments,
        ("agents cancel 0198c0de-…",),
    ),
)
