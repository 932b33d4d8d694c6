"""`bonobot tokens …`: keys for programs."""

import argparse
from typing import Any
from uuid import UUID

from agents.models import Agent
from bonobot.cli.group import Cli, Verb, table
from bonobot.tenancy.models import Token
from bonobot.tenancy.roles import Role
from bonobot.tenancy.tokens import issue, revoke


def _create_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--role", required=True, choices=[role.value for role in Role])
    parser.add_argument("--agent", metavar="SLUG", help="only for this agent")
    parser.add_argument("--calls-per-minute", type=int)


def _create(cli: Cli, options: argparse.Namespace) -> None:
    agent_id: UUID | None = None
    if options.agent:
        agent_id = Agent.objects.get_or_404(cli.principal.organization_id, slug=options.agent).pk
    token, text = issue(
        cli.principal,
        name=options.name,
        role=Role(options.role),
        agent_id=agent_id,
        calls_per_minute=options.calls_per_minute,
    )
    cli.emit(as_json(token) | {"token": text})
    cli.say(text)
    if not cli.as_json:
        cli.err.print("Keep it: it is not shown again.", style="dim")


def as_json(token: Token) -> dict[str, Any]:
    """Return a token as programs read it; its text is known to nobody."""
    return {
        "id": str(token.pk),
        "name": token.name,
        "key": token.key,
        "role": token.role,
        "agent_id": str(token.agent_id) if token.agent_id else None,
        "expires_at": token.expires_at,
        "last_used_at": token.last_used_at,
        "revoked_at": token.revoked_at,
    }


def _list(cli: Cli, options: argparse.Namespace) -> None:
    found = [as_json(t) for t in Token.objects.for_organization(cli.principal.organization_id)]
    rows = [
        (t["key"], t["name"], t["role"], t["last_used_at"], "revoked" if t["revoked_at"] else "")
        for t in found
    ]
    empty = "No tokens yet: bonobot tokens create NAME --role operator"
    cli.emit(found, table("KEY", "NAME", "ROLE", "LAST USED", "", rows=rows, empty=empty))


def _revoke_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="the token's public key, as listed")


def _revoke(cli: Cli, options: argparse.Namespace) -> None:
    token: Token = Token.objects.get_or_404(cli.principal.organization_id, key=options.key)
    revoke(cli.principal, token)
    token.refresh_from_db()
    cli.emit(as_json(token))
    cli.say(f"{token.name} is revoked.")


VERBS = (
    Verb(
        "create",
        "Make a token and print it once.",
        _create,
        _create_arguments,
        ("tokens create ci --role operator", "tokens create ide --role member --agent demo"),
    ),
    Verb("list", "List the tokens.", _list, examples=("tokens list",)),
    Verb(
        "revoke",
        "End a token at once.",
        _revoke,
        _revoke_arguments,
        ("tokens revoke 1a2b3c4d5e6f",),
    ),
)
