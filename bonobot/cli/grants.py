"""`bonobot agents grants|revoke-grant`: what was allowed for a whole session."""

import argparse
from typing import Any

from agents.approvals import revoke
from agents.models import SessionGrant
from bonobot.cli.group import Cli, Verb, table
from bonobot.cli.running import find


def _as_json(grant: SessionGrant) -> dict[str, Any]:
    return {
        "id": str(grant.pk),
        "session_id": str(grant.session_id),
        "server_id": str(grant.server_id) if grant.server_id else None,
        "tool": grant.own_name,
        "name": grant.label,
        "granted_by": grant.granted_by,
        "created_at": grant.created_at,
    }


def _list(cli: Cli, options: argparse.Namespace) -> None:
    session = find(cli, options.session)
    found = [_as_json(one) for one in session.grants.order_by("created_at", "pk")]
    rows = [(one["id"], one["name"], one["granted_by"]) for one in found]
    empty = "Nothing was allowed for the whole session."
    cli.emit(found, table("ID", "TOOL", "ALLOWED BY", rows=rows, empty=empty))


def _revoke(cli: Cli, options: argparse.Namespace) -> None:
    rows: Any = SessionGrant.objects
    grant: SessionGrant = rows.get_or_404(cli.principal.organization_id, pk=options.grant)
    shown = _as_json(grant)
    revoke(cli.principal, grant)
    cli.emit(shown)
    cli.say(f"{shown['name']} is asked about again, from the very next call.")


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", metavar="SESSION", help="its id")


def _revoke_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("grant", metavar="GRANT", help="its id, as `agents grants` lists it")


VERBS = (
    Verb(
        "grants",
        "List what was allowed for a whole session.",
        _list,
        _list_arguments,
        ("agents grants 0198c0de-…",),
    ),
    Verb(
        "revoke-grant",
        "Take back what was allowed for a session.",
        _revoke,
        _revoke_arguments,
        ("agents revoke-grant 0198c0df-…",),
    ),
)
