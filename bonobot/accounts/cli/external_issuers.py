"""The command group `issuers`."""

import argparse
from typing import Any

from bonobot.accounts.agent_directory import find_agent_ids
from bonobot.accounts.external_issuers import services as external_issuers
from bonobot.accounts.external_issuers.jwt_validation import OF_GATEWAY
from bonobot.accounts.models import Issuer
from bonobot.accounts.roles import Role
from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table
from bonobot.core.problems import InvalidInput

TEXTS = ("audience", "subject_claim", "label_claim", "scope_claim", "role_claim", "role")
FLAGS = ("any_type", "allow_private", "announced", "enabled")
# Limits that `--clear` removes, and their columns.
CLEARED = {"scopes": "scopes", "agents": "agent_ids", "roles": "roles"}


def as_json(issuer: Issuer) -> dict[str, Any]:
    """Return an issuer as JSON data."""
    names = ("name", "url", *TEXTS, "roles", "scopes", "calls_per_minute", *FLAGS)
    told = {name: getattr(issuer, name) for name in names}
    return {"id": str(issuer.pk), **told, "agents": issuer.agent_ids}


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
        "--scope", action="append", choices=[*OF_GATEWAY], help="allow this one; repeatable"
    )
    parser.add_argument(
        "--agent", action="append", metavar="SLUG", help="only for this agent; repeatable"
    )
    parser.add_argument("--calls-per-minute", type=int, help="of each subject; 0: the usual limit")
    for name in FLAGS:
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, action=argparse.BooleanOptionalAction, default=None)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--url", required=True, help="as its tokens have it in `iss`")
    _add_issuer_arguments(parser)


def _set_arguments(parser: argparse.ArgumentParser) -> None:
    _add_name_argument(parser)
    parser.add_argument("--url", help="as its tokens have it in `iss`")
    _add_issuer_arguments(parser)
    parser.add_argument(
        "--clear", action="append", choices=[*CLEARED], help="take these away; repeatable"
    )


def _add_name_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the issuer's name or URL")


def _collect_issuer_options(cli: CommandContext, options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields set by the options; the others stay unchanged."""
    said = {name: getattr(options, name) for name in ("url", *TEXTS, *FLAGS)}
    said = {name: value for name, value in said.items() if value is not None}
    if options.role_for is not None:
        said["roles"] = dict(map(_parse_role_mapping, options.role_for))
    if options.scope is not None:
        said["scopes"] = options.scope
    if options.agent is not None:
        said["agent_ids"] = find_agent_ids(cli.principal.organization_id, options.agent)
    if options.calls_per_minute is not None:
        said["calls_per_minute"] = options.calls_per_minute or None
    return said


def _parse_role_mapping(text: str) -> tuple[str, str]:
    value, found, role = text.rpartition("=")
    if not found:
        raise InvalidInput(
            f"{text!r} names no role.",
            field="--role-for",
            remedy="Write it as VALUE=ROLE, like bonobot-operators=operator.",
        )
    return value, role


def _get_issuer(cli: CommandContext, options: argparse.Namespace) -> Issuer:
    mine = Issuer.objects.for_organization(cli.principal.organization_id)
    found: Issuer = mine.filter(url=options.name).first() or Issuer.objects.get_or_404(
        cli.principal.organization_id, name=options.name
    )
    return found


def _list(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = Issuer.objects.for_organization(cli.principal.organization_id)
    found = [as_json(row) for row in rows]
    shown = [(i["name"], i["url"], i["role"], "" if i["enabled"] else "off") for i in found]
    empty = "Only our own tokens are taken: bonobot issuers add NAME --url URL"
    cli.emit(found, build_table("NAME", "ISSUER", "ROLE", "", rows=shown, empty=empty))


def _add(cli: CommandContext, options: argparse.Namespace) -> None:
    issuer = external_issuers.add(
        cli.principal, name=options.name, **_collect_issuer_options(cli, options)
    )
    cli.emit(as_json(issuer))
    cli.say(f"Tokens of {issuer.url} are taken.")


def _set(cli: CommandContext, options: argparse.Namespace) -> None:
    issuer = _get_issuer(cli, options)
    cleared: dict[str, Any] = {CLEARED[one]: None for one in options.clear or ()}
    external_issuers.update_issuer(
        cli.principal, issuer, **cleared | _collect_issuer_options(cli, options)
    )
    cli.emit(as_json(issuer))
    cli.say(f"{issuer.name} is changed.")


def _check(cli: CommandContext, options: argparse.Namespace) -> None:
    issuer = _get_issuer(cli, options)
    with cli.waiting(f"Asking {issuer.url} …"):
        keys = external_issuers.check(cli.principal, issuer)
    cli.emit({"id": str(issuer.pk), "keys": keys})
    cli.say(f"{issuer.name} answers; keys that it publishes: {keys}.")


def _remove(cli: CommandContext, options: argparse.Namespace) -> None:
    issuer = _get_issuer(cli, options)
    external_issuers.remove(cli.principal, issuer)
    cli.emit(as_json(issuer))
    cli.say(f"Tokens of {issuer.url} are taken no longer.")


VERBS = (
    CommandVerb("list", "List the issuers.", _list, examples=("issuers list",)),
    CommandVerb(
        "add",
        "Take the tokens of an issuer over MCP.",
        _add,
        _add_arguments,
        (
            "issuers add Login --url https://login.example.com --role member --agent helper",
            "issuers add Login --url https://login.example.com --role-claim groups "
            "--role-for bonobot-operators=operator --role ''",
        ),
    ),
    CommandVerb(
        "set",
        "Change what tokens of an issuer may do; it holds on their very next call.",
        _set,
        _set_arguments,
        ("issuers set Login --scope mcp:tools", "issuers set Login --no-enabled"),
    ),
    CommandVerb(
        "check",
        "Read an issuer's keys now.",
        _check,
        _add_name_argument,
        ("issuers check Login",),
    ),
    CommandVerb(
        "remove",
        "Take an issuer's tokens no longer.",
        _remove,
        _add_name_argument,
        ("issuers remove Login",),
    ),
)
