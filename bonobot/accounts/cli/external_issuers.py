"""The command group `issuers`."""

import argparse
from typing import Any

from bonobot.accounts.agent_directory import find_agent_ids
from bonobot.accounts.external_issuers import services as external_issuers
from bonobot.accounts.external_issuers.jwt_validation import GATEWAY_SCOPES
from bonobot.accounts.models import Issuer
from bonobot.accounts.roles import Role
from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table
from bonobot.core.problems import InvalidInput

TEXT_FIELDS = ("audience", "subject_claim", "label_claim", "scope_claim", "role_claim", "role")
FLAG_FIELDS = ("any_type", "allow_private", "announced", "enabled")
# Limits that `--clear` removes, and their columns.
CLEARABLE_FIELDS = {"scopes": "scopes", "agents": "agent_ids", "roles": "roles"}


def serialize_issuer(issuer: Issuer) -> dict[str, Any]:
    """Return an issuer as JSON data."""
    names = ("name", "url", *TEXT_FIELDS, "roles", "scopes", "calls_per_minute", *FLAG_FIELDS)
    values = {name: getattr(issuer, name) for name in names}
    return {"id": str(issuer.pk), **values, "agents": issuer.agent_ids}


def _add_issuer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--audience", metavar="TEXT", help="what `aud` must contain")
    parser.add_argument("--subject-claim", metavar="CLAIM", help="who it is: sub")
    parser.add_argument("--label-claim", metavar="CLAIM", help="what the audit shows, like email")
    parser.add_argument("--scope-claim", metavar="CLAIM", help="'' gives each all that is allowed")
    parser.add_argument("--role", choices=["", *Role], help="of whoever no claim gives one")
    parser.add_argument("--role-claim", metavar="CLAIM", help="like realm_access.roles")
    parser.add_argument(
        "--role-for", action="append", metavar="VALUE=ROLE", help="of the claim; repeatable"
    )
    parser.add_argument(
        "--scope", action="append", choices=[*GATEWAY_SCOPES], help="allow this one; repeatable"
    )
    parser.add_argument(
        "--agent", action="append", metavar="SLUG", help="only for this agent; repeatable"
    )
    parser.add_argument("--calls-per-minute", type=int, help="of each subject; 0: the usual limit")
    for name in FLAG_FIELDS:
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, action=argparse.BooleanOptionalAction, default=None)


def _add_create_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--url", required=True, help="as its tokens have it in `iss`")
    _add_issuer_arguments(parser)


def _add_update_arguments(parser: argparse.ArgumentParser) -> None:
    _add_name_argument(parser)
    parser.add_argument("--url", help="as its tokens have it in `iss`")
    _add_issuer_arguments(parser)
    parser.add_argument(
        "--clear", action="append", choices=[*CLEARABLE_FIELDS], help="take these away; repeatable"
    )


def _add_name_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the issuer's name or URL")


def _collect_issuer_options(cli: CommandContext, options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields set by the options; the others stay unchanged."""
    values = {name: getattr(options, name) for name in ("url", *TEXT_FIELDS, *FLAG_FIELDS)}
    values = {name: value for name, value in values.items() if value is not None}
    if options.role_for is not None:
        values["roles"] = dict(map(_parse_role_mapping, options.role_for))
    if options.scope is not None:
        values["scopes"] = options.scope
    if options.agent is not None:
        values["agent_ids"] = find_agent_ids(cli.principal.organization_id, options.agent)
    if options.calls_per_minute is not None:
        values["calls_per_minute"] = options.calls_per_minute or None
    return values


def _parse_role_mapping(text: str) -> tuple[str, str]:
    value, separator, role = text.rpartition("=")
    if not separator:
        raise InvalidInput(
            f"{text!r} names no role.",
            field="--role-for",
            remedy="Write it as VALUE=ROLE, like bonobot-operators=operator.",
        )
    return value, role


def _get_issuer(cli: CommandContext, options: argparse.Namespace) -> Issuer:
    issuers = Issuer.objects.for_organization(cli.principal.organization_id)
    issuer: Issuer = issuers.filter(url=options.name).first() or Issuer.objects.get_or_404(
        cli.principal.organization_id, name=options.name
    )
    return issuer


def _list_issuers(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = Issuer.objects.for_organization(cli.principal.organization_id)
    serialized = [serialize_issuer(row) for row in rows]
    table_rows = [
        (i["name"], i["url"], i["role"], "" if i["enabled"] else "off") for i in serialized
    ]
    empty = "Only our own tokens are taken: bonobot issuers add NAME --url URL"
    cli.emit(serialized, build_table("NAME", "ISSUER", "ROLE", "", rows=table_rows, empty=empty))


def _create_issuer(cli: CommandContext, options: argparse.Namespace) -> None:
    issuer = external_issuers.create_issuer(
        cli.principal, name=options.name, **_collect_issuer_options(cli, options)
    )
    cli.emit(serialize_issuer(issuer))
    cli.print_message(f"Tokens of {issuer.url} are taken.")


def _update_issuer(cli: CommandContext, options: argparse.Namespace) -> None:
    issuer = _get_issuer(cli, options)
    cleared_fields: dict[str, Any] = {
        CLEARABLE_FIELDS[option]: None for option in options.clear or ()
    }
    external_issuers.update_issuer(
        cli.principal, issuer, **cleared_fields | _collect_issuer_options(cli, options)
    )
    cli.emit(serialize_issuer(issuer))
    cli.print_message(f"{issuer.name} is changed.")


def _check_issuer(cli: CommandContext, options: argparse.Namespace) -> None:
    issuer = _get_issuer(cli, options)
    with cli.show_spinner(f"Asking {issuer.url} …"):
        keys = external_issuers.check_issuer(cli.principal, issuer)
    cli.emit({"id": str(issuer.pk), "keys": keys})
    cli.print_message(f"{issuer.name} answers; keys that it publishes: {keys}.")


def _delete_issuer(cli: CommandContext, options: argparse.Namespace) -> None:
    issuer = _get_issuer(cli, options)
    external_issuers.delete_issuer(cli.principal, issuer)
    cli.emit(serialize_issuer(issuer))
    cli.print_message(f"Tokens of {issuer.url} are taken no longer.")


VERBS = (
    CommandVerb("list", "List the issuers.", _list_issuers, examples=("issuers list",)),
    CommandVerb(
        "add",
        "Take the tokens of an issuer over MCP.",
        _create_issuer,
        _add_create_arguments,
        (
            "issuers add Login --url https://login.example.com --role member --agent helper",
            "issuers add Login --url https://login.example.com --role-claim groups "
            "--role-for bonobot-operators=operator --role ''",
        ),
    ),
    CommandVerb(
        "set",
        "Change what tokens of an issuer may do; it holds on their very next call.",
        _update_issuer,
        _add_update_arguments,
        ("issuers set Login --scope mcp:tools", "issuers set Login --no-enabled"),
    ),
    CommandVerb(
        "check",
        "Read an issuer's keys now.",
        _check_issuer,
        _add_name_argument,
        ("issuers check Login",),
    ),
    CommandVerb(
        "remove",
        "Take an issuer's tokens no longer.",
        _delete_issuer,
        _add_name_argument,
        ("issuers remove Login",),
    ),
)
