"""The command group `sso`."""

import argparse
from typing import Any

from bonobot.accounts.cli.external_issuers import (
    ISSUER_URL_HELP,
    build_flag_arguments,
    build_role_arguments,
    collect_options,
    show_check,
    show_list,
)
from bonobot.accounts.models import Provider
from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb, expand_variables

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
    from bonobot.accounts.sso import identity_providers as sso

    names = ("name", "url", *TEXT_FIELDS, "domains", "roles", *FLAG_FIELDS)
    values = {name: getattr(provider, name) for name in names}
    redirect_uri = sso.build_redirect_uri(provider.organization_id)
    secret = str(provider.client_secret or "")
    return {"id": str(provider.pk), **values, "client_secret": secret, "redirect_uri": redirect_uri}


_NAME_ARGUMENT = (Argument("NAME", "Name of the provider"),)


_SETTING_ARGUMENTS = (
    Argument("--client-secret TEXT", "Client secret, such as '${SECRET}'. '': none"),
    Argument("--domain DOMAIN", "Accepted email domain. Repeatable", action="append"),
    *build_role_arguments("groups"),
    *build_flag_arguments(FLAG_HELP),
)


_CREATE_ARGUMENTS = (
    Argument("NAME", "Name of the provider, shown on the sign-in page"),
    Argument("--url URL", ISSUER_URL_HELP, required=True),
    Argument("--client-id ID", "Client ID", required=True),
    *_SETTING_ARGUMENTS,
)


_UPDATE_ARGUMENTS = (
    *_NAME_ARGUMENT,
    Argument("--url URL", ISSUER_URL_HELP),
    Argument("--client-id ID", "Client ID"),
    *_SETTING_ARGUMENTS,
)


def _collect_provider_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields set by the options; the others stay unchanged."""
    values = collect_options(options, (*TEXT_FIELDS, *FLAG_FIELDS))
    if options.client_secret is not None:
        values["client_secret"] = expand_variables(options.client_secret, "--client-secret")
    if options.domain is not None:
        values["domains"] = [domain for domain in options.domain if domain]
    return values


def _list_providers(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = Provider.objects.for_organization(cli.principal.organization_id)
    empty = "No identity providers. Add one: bonobot sso add NAME --url URL --client-id ID"
    show_list(cli, [serialize_provider(row) for row in rows], empty)


def _create_provider(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.sso import identity_providers as sso

    provider = sso.create_provider(
        cli.principal, name=options.name, **_collect_provider_options(options)
    )
    cli.emit(serialize_provider(provider))
    redirect_uri = sso.build_redirect_uri(provider.organization_id)
    cli.print_message(f"People can now sign in with {provider.name}.")
    cli.print_message(f"Register this redirect URI at the provider: {redirect_uri}")


def _update_provider(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.sso import identity_providers as sso

    provider = cli.get_row(Provider, name=options.name)
    sso.update_provider(cli.principal, provider, **_collect_provider_options(options))
    cli.emit(serialize_provider(provider))
    cli.print_message(f"{provider.name} was updated.")


def _check_provider(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.sso import identity_providers as sso

    show_check(cli, cli.get_row(Provider, name=options.name), sso.check_provider)


def _delete_provider(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.sso import identity_providers as sso

    provider = cli.get_row(Provider, name=options.name)
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
        arguments=_CREATE_ARGUMENTS,
        examples=(
            "sso add Acme --url https://login.example.com --client-id bonobot "
            "--client-secret '${SECRET}' --domain example.com --creates",
        ),
    ),
    CommandVerb(
        "set",
        "Update an identity provider",
        _update_provider,
        arguments=_UPDATE_ARGUMENTS,
        examples=(
            "sso set Acme --role-claim groups --role-for bonobot-operators=operator",
            "sso set Acme --no-enabled",
        ),
    ),
    CommandVerb(
        "check",
        "Fetch the metadata and keys of an identity provider now",
        _check_provider,
        arguments=_NAME_ARGUMENT,
        examples=("sso check Acme",),
    ),
    CommandVerb(
        "remove",
        "Delete an identity provider. Accounts are kept.",
        _delete_provider,
        arguments=_NAME_ARGUMENT,
        examples=("sso remove Acme",),
        confirmation="Delete the identity provider {name}?",
    ),
)
