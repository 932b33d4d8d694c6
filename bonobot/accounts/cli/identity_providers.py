"""The command group `sso`."""

import argparse
from typing import Any

from bonobot.accounts.models import Provider
from bonobot.accounts.roles import Role
from bonobot.accounts.sso import services as sso
from bonobot.core.cli.command_group import (
    CommandContext,
    CommandVerb,
    build_table,
    expand,
    parse_pairs,
)

TEXTS = ("client_id", "role", "role_claim")
FLAGS = ("trusts_email", "creates", "second_factor", "announced", "allow_private", "enabled")


def as_json(provider: Provider) -> dict[str, Any]:
    """Return a provider as JSON data, its secret masked."""
    names = ("name", "url", *TEXTS, "domains", "roles", *FLAGS)
    told = {name: getattr(provider, name) for name in names}
    where = sso.redirect_uri(provider.organization_id)
    secret = str(provider.client_secret or "")
    return {"id": str(provider.pk), **told, "client_secret": secret, "redirect_uri": where}


def _add_provider_arguments(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--url", required=required, help="as its tokens have it in `iss`")
    parser.add_argument("--client-id", required=required, metavar="ID")
    parser.add_argument(
        "--client-secret", metavar="TEXT", help="like '${SECRET}'; '' takes it away"
    )
    parser.add_argument("--domain", action="append", metavar="DOMAIN", help="repeatable")
    parser.add_argument("--role", choices=["", *Role], help="of whoever no claim gives one")
    parser.add_argument("--role-claim", metavar="CLAIM", help="like groups")
    parser.add_argument(
        "--role-for", action="append", metavar="VALUE=ROLE", help="of the claim; repeatable"
    )
    for name in FLAGS:
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, action=argparse.BooleanOptionalAction, default=None)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    _add_provider_arguments(parser, required=True)


def _set_arguments(parser: argparse.ArgumentParser) -> None:
    _add_name_argument(parser)
    _add_provider_arguments(parser, required=False)


def _add_name_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the provider's name")


def _collect_provider_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields set by the options; the others stay unchanged."""
    said = {name: getattr(options, name) for name in ("url", *TEXTS, *FLAGS)}
    said = {name: value for name, value in said.items() if value is not None}
    if options.client_secret is not None:
        said["client_secret"] = expand(options.client_secret, "--client-secret")
    if options.domain is not None:
        said["domains"] = [one for one in options.domain if one]
    if options.role_for is not None:
        said["roles"] = parse_pairs(options.role_for, "--role-for")
    return said


def _get_provider(cli: CommandContext, options: argparse.Namespace) -> Provider:
    here = cli.principal.organization_id
    found: Provider = Provider.objects.get_or_404(here, name=options.name)
    return found


def _list(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = Provider.objects.for_organization(cli.principal.organization_id)
    found = [as_json(row) for row in rows]
    shown = [(i["name"], i["url"], i["role"], "" if i["enabled"] else "off") for i in found]
    empty = "People sign in by password: bonobot sso add NAME --url URL --client-id ID"
    cli.emit(found, build_table("NAME", "ISSUER", "ROLE", "", rows=shown, empty=empty))


def _add(cli: CommandContext, options: argparse.Namespace) -> None:
    provider = sso.add(cli.principal, name=options.name, **_collect_provider_options(options))
    cli.emit(as_json(provider))
    where = sso.redirect_uri(provider.organization_id)
    cli.say(f"People sign in by {provider.name}. Tell it the redirect address {where}")


def _set(cli: CommandContext, options: argparse.Namespace) -> None:
    provider = _get_provider(cli, options)
    sso.update_provider(cli.principal, provider, **_collect_provider_options(options))
    cli.emit(as_json(provider))
    cli.say(f"{provider.name} is changed.")


def _check(cli: CommandContext, options: argparse.Namespace) -> None:
    provider = _get_provider(cli, options)
    with cli.waiting(f"Asking {provider.url} …"):
        keys = sso.check(cli.principal, provider)
    cli.emit({"id": str(provider.pk), "keys": keys})
    cli.say(f"{provider.name} answers; keys that it publishes: {keys}.")


def _remove(cli: CommandContext, options: argparse.Namespace) -> None:
    provider = _get_provider(cli, options)
    told = as_json(provider)
    sso.remove(cli.principal, provider)
    cli.emit(told)
    cli.say(f"Nobody signs in by {told['name']} any more.")


VERBS = (
    CommandVerb("list", "List the identity providers.", _list, examples=("sso list",)),
    CommandVerb(
        "add",
        "Let people sign in by an OpenID provider.",
        _add,
        _add_arguments,
        (
            "sso add Acme --url https://login.example.com --client-id bonobot "
            "--client-secret '${SECRET}' --domain example.com --creates",
        ),
    ),
    CommandVerb(
        "set",
        "Change an identity provider.",
        _set,
        _set_arguments,
        (
            "sso set Acme --role-claim groups --role-for bonobot-operators=operator",
            "sso set Acme --no-enabled",
        ),
    ),
    CommandVerb(
        "check",
        "Ask an identity provider for its metadata and keys now.",
        _check,
        _add_name_argument,
        ("sso check Acme",),
    ),
    CommandVerb(
        "remove",
        "Let nobody sign in by it any more; accounts stay.",
        _remove,
        _add_name_argument,
        ("sso remove Acme",),
    ),
)
