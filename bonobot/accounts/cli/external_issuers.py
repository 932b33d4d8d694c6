"""The command group `issuers`, and the options that `sso` has in common with it."""

import argparse
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bonobot.accounts.extension_points import find_agent_ids
from bonobot.accounts.external_issuers import services as external_issuers
from bonobot.accounts.external_issuers.jwt_validation import GATEWAY_SCOPES
from bonobot.accounts.models import Issuer, Provider
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb
from bonobot.core.cli.text_table import build_table
from bonobot.core.problems import InvalidInput

ISSUER_URL_HELP = "Issuer URL, exactly as in `iss` of its tokens"


def build_role_arguments(claim_example: str) -> tuple[Argument, ...]:
    """Return the arguments for the roles that tokens give."""
    return (
        Argument(
            "--role",
            "Role of users without a role from a claim. '': no access",
            choices=["", *Role],
        ),
        Argument("--role-claim CLAIM", f"Claim with the role, such as {claim_example}"),
        Argument(
            "--role-for VALUE=ROLE",
            "Role for a value of the role claim. Repeatable",
            action="append",
        ),
    )


def build_flag_arguments(flags: Mapping[str, str]) -> tuple[Argument, ...]:
    """Return a pair of options for each of these fields, with its help."""
    return tuple(
        Argument(f"--[no-]{name.replace('_', '-')}", help_text) for name, help_text in flags.items()
    )


def collect_options(options: argparse.Namespace, names: Collection[str]) -> dict[str, Any]:
    """Return the URL, the roles, and the fields `names` that the options set."""
    values = {name: getattr(options, name) for name in ("url", *names)}
    values = {name: value for name, value in values.items() if value is not None}
    if options.role_for is not None:
        values["roles"] = dict(map(_parse_role_mapping, options.role_for))
    return values


def _parse_role_mapping(text: str) -> tuple[str, str]:
    value, separator, role = text.rpartition("=")
    if not separator:
        raise InvalidInput(
            f"{text!r} doesn't contain a role.",
            field="--role-for",
            remedy="Use the format VALUE=ROLE, such as bonobot-operators=operator.",
        )
    return value, role


def show_list(cli: CommandContext, serialized: list[dict[str, Any]], empty: str) -> None:
    """Show the rows, or the text `empty`."""
    table_rows = [
        (i["name"], i["url"], i["role"], "" if i["enabled"] else "disabled") for i in serialized
    ]
    cli.emit(
        serialized, build_table("NAME", "ISSUER", "ROLE", "STATUS", rows=table_rows, empty=empty)
    )


def show_check(
    cli: CommandContext, row: Issuer | Provider, check_row: Callable[[Principal, Any], int]
) -> None:
    """Fetch the keys of a row now and show how many there are."""
    with cli.show_spinner(f"Checking {row.url}…"):
        keys = check_row(cli.principal, row)
    cli.emit({"id": str(row.pk), "keys": keys})
    cli.print_message(f"{row.name} is reachable. Published keys: {keys}.")


TEXT_FIELDS = ("audience", "subject_claim", "label_claim", "scope_claim", "role_claim", "role")
FLAG_HELP = {
    "any_type": "Whether tokens of type JWT are accepted",
    "allow_private": "Whether a private address is allowed",
    "announced": "Whether the issuer is advertised to clients",
    "enabled": "Whether the issuer is enabled",
}
FLAG_FIELDS = tuple(FLAG_HELP)
# Limits that `--clear` removes, and their columns.
CLEARABLE_FIELDS = {"scopes": "scopes", "agents": "agent_ids", "roles": "roles"}


def serialize_issuer(issuer: Issuer) -> dict[str, Any]:
    names = ("name", "url", *TEXT_FIELDS, "roles", "scopes", "calls_per_minute", *FLAG_FIELDS)
    values = {name: getattr(issuer, name) for name in names}
    return {"id": str(issuer.pk), **values, "agents": issuer.agent_ids}


_ISSUER_ARGUMENTS = (
    Argument(
        "--audience TEXT",
        "Required value in `aud` (default: the exact URL that the token is used at)",
    ),
    Argument("--subject-claim CLAIM", "Claim with the subject (default: sub)"),
    Argument("--label-claim CLAIM", "Claim shown in the audit log, such as email"),
    Argument(
        "--scope-claim CLAIM",
        "Claim with the scopes (default: scope). '': every token has all allowed scopes",
    ),
    *build_role_arguments("realm_access.roles"),
    Argument(
        "--scope",
        "Allow only this scope. Repeatable",
        action="append",
        choices=[*GATEWAY_SCOPES],
    ),
    Argument("--agent SLUG", "Allow only this agent. Repeatable", action="append"),
    Argument(
        "--calls-per-minute N",
        "Maximum calls per minute of each subject. 0: the default limit",
        type=int,
    ),
    *build_flag_arguments(FLAG_HELP),
)


_CREATE_ARGUMENTS = (
    Argument("NAME", "Name of the issuer"),
    Argument("--url URL", ISSUER_URL_HELP, required=True),
    *_ISSUER_ARGUMENTS,
)


_NAME_ARGUMENT = (Argument("NAME", "Name or URL of the issuer"),)


_UPDATE_ARGUMENTS = (
    *_NAME_ARGUMENT,
    Argument("--url URL", ISSUER_URL_HELP),
    *_ISSUER_ARGUMENTS,
    Argument(
        "--clear", "Remove these limits. Repeatable", action="append", choices=[*CLEARABLE_FIELDS]
    ),
)


def _collect_issuer_options(cli: CommandContext, options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields set by the options; the others stay unchanged."""
    values = collect_options(options, (*TEXT_FIELDS, *FLAG_FIELDS))
    if options.scope is not None:
        values["scopes"] = options.scope
    if options.agent is not None:
        values["agent_ids"] = find_agent_ids(cli.principal.organization_id, options.agent)
    if options.calls_per_minute is not None:
        values["calls_per_minute"] = options.calls_per_minute or None
    return values


def _get_issuer(cli: CommandContext, options: argparse.Namespace) -> Issuer:
    issuers = Issuer.objects.for_organization(cli.principal.organization_id)
    issuer: Issuer | None = issuers.filter(url=options.name).first()
    return issuer or cli.get_row(Issuer, name=options.name)


def _list_issuers(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = Issuer.objects.for_organization(cli.principal.organization_id)
    empty = "No external issuers. Add one: bonobot issuers add NAME --url URL"
    show_list(cli, [serialize_issuer(row) for row in rows], empty)


def _create_issuer(cli: CommandContext, options: argparse.Namespace) -> None:
    issuer = external_issuers.create_issuer(
        cli.principal, name=options.name, **_collect_issuer_options(cli, options)
    )
    cli.emit(serialize_issuer(issuer))
    cli.print_message(f"Tokens of {issuer.url} are now accepted.")


def _update_issuer(cli: CommandContext, options: argparse.Namespace) -> None:
    issuer = _get_issuer(cli, options)
    cleared_fields: dict[str, Any] = {
        CLEARABLE_FIELDS[option]: None for option in options.clear or ()
    }
    external_issuers.update_issuer(
        cli.principal, issuer, **cleared_fields | _collect_issuer_options(cli, options)
    )
    cli.emit(serialize_issuer(issuer))
    cli.print_message(f"{issuer.name} was updated.")


def _check_issuer(cli: CommandContext, options: argparse.Namespace) -> None:
    show_check(cli, _get_issuer(cli, options), external_issuers.check_issuer)


def _delete_issuer(cli: CommandContext, options: argparse.Namespace) -> None:
    issuer = _get_issuer(cli, options)
    external_issuers.delete_issuer(cli.principal, issuer)
    cli.emit(serialize_issuer(issuer))
    cli.print_message(f"{issuer.name} was deleted. Tokens of {issuer.url} are no longer accepted.")


VERBS = (
    CommandVerb("list", "List external issuers", _list_issuers, examples=("issuers list",)),
    CommandVerb(
        "add",
        "Accept an external issuer's tokens over MCP",
        _create_issuer,
        arguments=_CREATE_ARGUMENTS,
        examples=(
            "issuers add Login --url https://login.example.com --role member --agent helper",
            "issuers add Login --url https://login.example.com --role-claim groups "
            "--role-for bonobot-operators=operator --role ''",
        ),
    ),
    CommandVerb(
        "set",
        "Update an external issuer. Changes apply from the next call.",
        _update_issuer,
        arguments=_UPDATE_ARGUMENTS,
        examples=("issuers set Login --scope mcp:tools", "issuers set Login --no-enabled"),
    ),
    CommandVerb(
        "check",
        "Fetch the keys of an external issuer now",
        _check_issuer,
        arguments=_NAME_ARGUMENT,
        examples=("issuers check Login",),
    ),
    CommandVerb(
        "remove",
        "Delete an external issuer. Its tokens are no longer accepted.",
        _delete_issuer,
        arguments=_NAME_ARGUMENT,
        examples=("issuers remove Login",),
        confirmation="Delete the external issuer {name}? Its tokens are no longer accepted.",
    ),
)
