"""The command group `tokens`."""

import argparse
from datetime import datetime
from typing import Any

from django.utils import timezone

from bonobot.accounts.extension_points import find_agent_ids
from bonobot.accounts.models import Token
from bonobot.accounts.roles import Role, TokenScope
from bonobot.accounts.tokens.services import create_token, revoke_token, update_token
from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb, parse_time
from bonobot.core.cli.text_table import build_table
from bonobot.core.problems import InvalidInput, NotFound

# Limits that `--clear` removes, and their terms.
CLEARABLE_TERMS = {"scopes": "scopes", "agents": "agent_ids", "networks": "networks"}


_TERMS_ARGUMENTS = (
    Argument(
        "--scope",
        "Allow only this scope. Repeatable",
        action="append",
        choices=[scope.value for scope in TokenScope],
    ),
    Argument("--agent SLUG", "Allow only this agent. Repeatable", action="append"),
    Argument("--network CIDR", "Allow only this network. Repeatable", action="append"),
    Argument("--client NAME", "Name of the client that uses the token"),
    Argument("--calls-per-minute N", "Maximum calls per minute. 0: the default limit", type=int),
    Argument("--expires TIME", "Expiration: 90d, 12h, an ISO 8601 date or time, or `never`"),
)


_CREATE_ARGUMENTS = (
    Argument("NAME", "Name of the token"),
    Argument("--role", "Role of the token", required=True, choices=[role.value for role in Role]),
    *_TERMS_ARGUMENTS,
)


def _create_token(cli: CommandContext, options: argparse.Namespace) -> None:
    terms = _collect_terms(cli, options) | {"name": options.name}
    token, text = create_token(cli.principal, role=Role(options.role), **terms)
    cli.emit(serialize_token(token) | {"token": text})
    cli.print_message(text)
    if not cli.as_json:
        cli.err.print("Copy the token now. It isn't shown again.", style="dim")


def _collect_terms(cli: CommandContext, options: argparse.Namespace) -> dict[str, Any]:
    """Return the terms set by the options; the others stay unchanged."""
    terms: dict[str, Any] = {}
    if options.scope is not None:
        terms["scopes"] = options.scope
    if options.agent is not None:
        terms["agent_ids"] = find_agent_ids(cli.principal.organization_id, options.agent)
    if options.network is not None:
        terms["networks"] = options.network
    if options.client is not None:
        terms["client"] = options.client
    if options.calls_per_minute is not None:
        terms["calls_per_minute"] = options.calls_per_minute or None
    if options.expires is not None:
        terms["expires_at"] = None if options.expires == "never" else _parse_expiry(options.expires)
    return terms


def _parse_expiry(text: str) -> datetime:
    """Return a future time: a number of days, hours or minutes from now, or a date."""
    now = timezone.now()
    try:
        expires_at = parse_time(text)
    except ValueError:
        raise InvalidInput(
            f"{text!r} isn't a valid time.",
            field="--expires",
            remedy="Use a value such as 90d, 12h, 2027-01-31, or `never`.",
        ) from None
    if text[:-1].isdigit():
        expires_at = now + (now - expires_at)
    if expires_at <= now:
        raise InvalidInput(
            "The expiration time is in the past.",
            field="--expires",
            remedy="Choose a future time, or revoke the token.",
        )
    return expires_at


def serialize_token(token: Token) -> dict[str, Any]:
    """Return a token as JSON data, without its secret."""
    return {
        "id": str(token.pk),
        "name": token.name,
        "key": token.key,
        "kind": token.kind,
        "authorized_by": token.user.get_username() if token.user else None,
        "client_id": token.client_id,
        "resource": token.resource,
        "role": token.role,
        "scopes": token.scopes,
        "agents": token.agent_ids,
        "agent_id": token.agent_ids[0] if len(token.agent_ids) == 1 else None,
        "networks": token.networks,
        "client": token.client,
        "calls_per_minute": token.calls_per_minute,
        "expires_at": token.expires_at,
        "last_used_at": token.last_used_at,
        "revoked_at": token.revoked_at,
    }


def _list_tokens(cli: CommandContext, options: argparse.Namespace) -> None:
    tokens = Token.objects.for_organization(cli.principal.organization_id).select_related("user")
    if options.authorized_by is not None:
        tokens = tokens.filter(user__username=options.authorized_by)
    serialized = [serialize_token(token) for token in tokens]
    rows = [
        (
            *(t["key"], t["name"], t["kind"], t["role"]),
            f"{t['last_used_at']:%Y-%m-%d %H:%M}" if t["last_used_at"] else "never",
            "revoked" if t["revoked_at"] else "",
        )
        for t in serialized
    ]
    empty = "No tokens yet. Create one: bonobot tokens create NAME --role operator"
    cli.emit(
        serialized,
        build_table("KEY", "NAME", "KIND", "ROLE", "LAST USED", "STATUS", rows=rows, empty=empty),
    )


_TOKEN_ARGUMENT = (Argument("TOKEN", "Name or public key of the token, as shown by `tokens list`"),)


def _get_token(cli: CommandContext, options: argparse.Namespace) -> Token:
    """Return a token by its public key or by its name, which only one token in use may have."""
    rows = Token.objects.for_organization(cli.principal.organization_id)
    if token := rows.filter(key=options.token).first():
        return token
    tokens = list(rows.filter(name=options.token, revoked_at=None)[:2])
    if len(tokens) > 1:
        raise InvalidInput(
            f"Several tokens are named {options.token!r}.",
            code="ambiguous_name",
            field="TOKEN",
            remedy="Specify the key, as shown by `bonobot tokens list`.",
        )
    if not tokens:
        raise NotFound(
            f"The token {options.token!r} doesn't exist.",
            field="TOKEN",
            remedy="List the tokens with: bonobot tokens list",
        )
    return tokens[0]


_UPDATE_ARGUMENTS = (
    *_TOKEN_ARGUMENT,
    Argument("--name NAME", "New name"),
    *_TERMS_ARGUMENTS,
    Argument(
        "--clear", "Remove these limits. Repeatable", action="append", choices=[*CLEARABLE_TERMS]
    ),
)


def _update_token(cli: CommandContext, options: argparse.Namespace) -> None:
    token = _get_token(cli, options)
    terms = {CLEARABLE_TERMS[option]: [] for option in options.clear or ()} | _collect_terms(
        cli, options
    )
    if options.name is not None:
        terms["name"] = options.name
    update_token(cli.principal, token, **terms)
    cli.emit(serialize_token(token))
    cli.print_message(f"{token.name} was updated.")


def _revoke_token(cli: CommandContext, options: argparse.Namespace) -> None:
    token = _get_token(cli, options)
    revoke_token(cli.principal, token)
    token.refresh_from_db()
    cli.emit(serialize_token(token))
    cli.print_message(f"{token.name} was revoked.")


VERBS = (
    CommandVerb(
        "create",
        "Create a token and print it once",
        _create_token,
        arguments=_CREATE_ARGUMENTS,
        examples=(
            "tokens create ci --role operator",
            "tokens create ide --role member --agent demo --scope mcp:tools --expires 90d",
        ),
    ),
    CommandVerb(
        "set",
        "Update a token. Changes apply from the next call.",
        _update_token,
        arguments=_UPDATE_ARGUMENTS,
        examples=(
            "tokens set ci --scope mcp:tools --agent demo --agent helper",
            "tokens set 1a2b3c4d5e6f --clear networks --expires 30d",
        ),
    ),
    CommandVerb(
        "list",
        "List tokens",
        _list_tokens,
        arguments=(
            Argument(
                "--authorized-by USERNAME", "Only tokens of clients that this person authorized"
            ),
        ),
        examples=("tokens list", "tokens list --authorized-by anna"),
    ),
    CommandVerb(
        "revoke",
        "Revoke a token",
        _revoke_token,
        arguments=_TOKEN_ARGUMENT,
        examples=("tokens revoke ci", "tokens revoke 1a2b3c4d5e6f --yes"),
        confirmation="Revoke the token {token}? Clients that use it lose access.",
    ),
)
