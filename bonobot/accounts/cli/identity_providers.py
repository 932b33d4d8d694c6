"""The command group `sso`."""

import argparse
from typing import Any

from bonobot.accounts.models import Provider
from bonobot.accounts.roles import Role
from bonobot.core.cli.command_group import (
    Argument,
    CommandContext,
    CommandVerb,
    add_arguments,
    build_table,
    expand_variables,
    parse_pairs,
)

TEXT_FIELDS = ("client_id", "role", "role_claim")
FLAG_HELP = {
    "trusts_email": "Whether email addresses are trusted without email_verified",
    "creates": "Whether accounts are created at the first sign-in",
    "second_factor": "Whether Bonobot's second factor is required",
    "announced": "Whether the provider is shown on the sign-in page",
    "allow_private": "Whether a private address is allowed",
    "enabled": "Whether the provider is enabled",
}
FLAG_FIELDS = tuple(FLAG_HELP)


def serialize_provider(provider: Provider) -> dict[str, Any]:
    """Return a provider as JSON data, its secret masked."""
    from bonobot.accounts.sso import services as sso

    names = ("name", "url", *TEXT_FIELDS, "domains", "roles", *FLAG_FIELDS)
    values = {name: getattr(provider, name) for name in names}
    redirect_uri = sso.build_redirect_uri(provider.organization_id)
    secret = str(provider.client_secret or "")
    return {"id": str(provider.pk), **values, "client_secret": secret, "redirect_uri": redirect_uri}


def _add_provider_arguments(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "--url", required=required, help="Issuer URL, exactly as in `iss` of its tokens"
    )
    parser.add_argument("--client-id", required=required, metavar="ID", help="Client ID")
    parser.add_argument(
        "--client-secret", metavar="TEXT", help="Client secret, such as '${SECRET}'. '': none"
    )
    parser.add_argument(
        "--domain", action="append", metavar="DOMAIN", help="Accepted email domain. Repeatable"
    )
    parser.add_argument(
        "--role",
        choices=["", *Role],
        help="Role of users without a role from a claim. '': no access",
    )
    parser.add_argument("--role-claim", metavar="CLAIM", help="Claim with the role, such as groups")
    parser.add_argument(
        "--role-for",
        action="append",
        metavar="VALUE=ROLE",
        help="Role for a value of the role claim. Repeatable",
    )
    for name in FLAG_FIELDS:
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(
            option, action=argparse.BooleanOptionalAction, default=None, help=FLAG_HELP[name]
        )


def _add_create_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="Name of the provider, shown on the sign-in page"
    )
    _add_provider_arguments(parser, required=True)


def _add_update_arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, _NAME_ARGUMENT)
    _add_provider_arguments(parser, required=False)


_NAME_ARGUMENT = (Argument("NAME", "Name of the provider"),)


def _collect_provider_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields set by the options; the others stay unchanged."""
    values = {name: getattr(options, name) for name in ("url", *TEXT_FIELDS, *FLAG_FIELDS)}
    values = {name: value for name, value in values.items() if value is not None}
    if options.client_secret is not None:
        values["client_secret"] = expand_variables(options.client_secret, "--client-secret")
    if options.domain is not None:
        values["domains"] = [domain for domain in options.domain if domain]
    if options.role_for is not None:
        values["roles"] = parse_pairs(options.role_for, "--role-for")
    return values


def _get_provider(cli: CommandContext, options: argparse.Namespace) -> Provider:
    organization_id = cli.principal.organization_id
    provider: Provider = Provider.objects.get_or_404(organization_id, name=options.name)
    return provider


def _list_providers(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = Provider.objects.for_organization(cli.principal.organization_id)
    serialized = [serialize_provider(row) for row in rows]
    table_rows = [
        (i["name"], i["url"], i["role"], "" if i["enabled"] else "disabled") for i in serialized
    ]
    empty = "No identity providers. Add one: bonobot sso add NAME --url URL --client-id ID"
    cli.emit(
        serialized, build_table("NAME", "ISSUER", "ROLE", "STATUS", rows=table_rows, empty=empty)
    )


def _create_provider(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.sso import services as sso

    provider = sso.create_provider(
        cli.principal, name=options.name, **_collect_provider_options(options)
    )
    cli.emit(serialize_provider(provider))
    redirect_uri = sso.build_redirect_uri(provider.organization_id)
    cli.print_message(f"People can now sign in with {provider.name}.")
    cli.print_message(f"Register this redirect URI at the provider: {redirect_uri}")


def _update_provider(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.sso import services as sso

    provider = _get_provider(cli, options)
    sso.update_provider(cli.principal, provider, **_collect_provider_options(options))
    cli.emit(serialize_provider(provider))
    cli.print_message(f"{provider.name} was updated.")


def _check_provider(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.sso import services as sso

    provider = _get_provider(cli, options)
    with cli.show_spinner(f"Checking {provider.url}…"):
        keys = sso.check_provider(cli.principal, provider)
    cli.emit({"id": str(provider.pk), "keys": keys})
    cli.print_message(f"{provider.name} is reachable. Published keys: {keys}.")


def _delete_provider(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.sso import services as sso

    provider = _get_provider(cli, options)
    serialized = serialize_provider(provider)
    sso.delete_provider(cli.principal, provider)
    cli.emit(serialized)
    cli.print_message(f"{serialized['name']} was deleted. People can no longer sign in with it.")


VERBS = (
    CommandVerb("list", "List identity providers", _list_providers, examples=("sso list",)),
    CommandVerb(
        "add",
        "Add an OpenID Connect identity provider",
        _create_provider,
        (_add_create_arguments,),
        (
            "sso add Acme --url https://login.example.com --client-id bonobot "
            "--client-secret '${SECRET}' --domain example.com --creates",
        ),
    ),
    CommandVerb(
        "set",
        "Update an identity provider",
        _update_provider,
        (_add_update_arguments,),
        (
            "sso set Acme --role-claim groups --role-for bonobot-operators=operator",
            "sso set Acme --no-enabled",
        ),
    ),
    CommandVerb(
        "check",
        "Fetch the metadata and keys of an identity provider now",
        _check_provider,
        _NAME_ARGUMENT,
        ("sso check Acme",),
    ),
    CommandVerb(
        "remove",
        "Delete an identity provider. Accounts are kept.",
        _delete_provider,
        _NAME_ARGUMENT,
        ("sso remove Acme",),
        "Delete the identity provider {name}?",
    ),
)
