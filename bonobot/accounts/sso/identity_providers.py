"""Create, update, delete and check identity providers."""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.urls import reverse

from bonobot.accounts.external_issuers import jwks
from bonobot.accounts.external_issuers import services as external_issuers
from bonobot.accounts.models import Identity, Membership, Organization, Provider
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action, Role
from bonobot.accounts.sso import oidc_client
from bonobot.core.crypto.secret_addresses import check_kept_secrets
from bonobot.core.db.transactions import lock_row
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.runtime import get_runtime
from bonobot.core.text.masking import MASK
from bonobot.ledger.audit.admin_changes import describe_row, record_change

MAX_DOMAINS = 100
MAX_SECRET_LENGTH = 4_096
MAX_PROVIDERS_SHOWN = 20
DOMAIN_PATTERN = re.compile(r"(?=.{1,253}$)[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})+")


def build_redirect_uri(organization_id: UUID) -> str:
    """Return the redirect URI of an organization's providers.

    Organizations don't share one, so that a provider can't inject another's code.
    """
    return f"{settings.BONOBOT_URL}{reverse('account_sso_done', args=[organization_id])}"


def build_oidc_client(provider: Provider) -> oidc_client.OidcClient:
    """Return our client registration at a provider."""
    return oidc_client.OidcClient(
        issuer=provider.url,
        client_id=provider.client_id,
        secret=provider.client_secret.open() if provider.client_secret else "",
        redirect_uri=build_redirect_uri(provider.organization_id),
        allow_private=provider.allow_private,
    )


def list_announced_providers() -> list[Provider]:
    """Return the providers that the sign-in page shows (a query)."""
    return list(Provider.objects.enabled().filter(announced=True)[:MAX_PROVIDERS_SHOWN])


def create_provider(principal: Principal, **values: Any) -> Provider:
    """Create a provider; `name`, `url` and `client_id` are required.

    Raises `InvalidInput`, `Forbidden`, `EgressDenied`, `Conflict` (`provider_taken`).
    """
    principal.require(Action.MANAGE_ORGANIZATION)
    provider = Provider(organization_id=principal.organization_id)
    _set_fields(principal, provider, {"name": "", "url": "", "client_id": ""} | values)
    with _record_change(principal, provider, "identity_provider_created", values):
        _save_provider(provider, force_insert=True)
    return provider


def update_provider(principal: Principal, provider: Provider, **values: Any) -> None:
    """Update a provider; disabling it ends its sessions. Raises like `create_provider`.

    A new issuer URL deletes the identities, as subjects mean other users there.
    """
    principal.require(Action.MANAGE_ORGANIZATION)
    values = {name: value for name, value in values.items() if value != MASK}
    before = {name: getattr(provider, name) for name in FIELD_CLEANERS}
    _set_fields(principal, provider, values)
    if provider.client_secret and "client_secret" not in values:
        check_kept_secrets(["client_secret"], {"url": before["url"]}, {"url": provider.url})
    changed_names = [
        name
        for name in values
        if before[name] != getattr(provider, name) and (before[name] or getattr(provider, name))
    ]
    if not changed_names:
        return
    with _record_change(
        principal,
        provider,
        "identity_provider_updated",
        {name: values[name] for name in changed_names},
    ):
        if "enabled" in changed_names and not provider.enabled:
            _require_other_provider(provider)
        if "url" in changed_names:
            Identity.objects.filter(provider=provider).delete()
        _save_provider(provider)


def delete_provider(principal: Principal, provider: Provider) -> None:
    """Delete a provider; accounts and memberships are kept."""
    principal.require(Action.MANAGE_ORGANIZATION)
    with _record_change(principal, provider, "identity_provider_deleted", {}):
        _require_other_provider(provider)
        provider.delete()


def check_provider(principal: Principal, provider: Provider) -> int:
    """Fetch a provider's metadata and keys and return the number of keys.

    Raises `IdentityProviderProblem`, `IssuerUnreachable`.
    """
    principal.require(Action.MANAGE_ORGANIZATION)
    get_runtime().call(oidc_client.start_sign_in, build_oidc_client(provider))
    issuer_address = jwks.IssuerAddress(provider.url, provider.allow_private)
    return len(get_runtime().call(jwks.get_jwks_cache().fetch_keys, issuer_address).keys)


def require_tested_sign_in(organization: Organization) -> None:
    """Raise `Conflict` (`sso_not_tested`) unless an owner has signed in with a provider.

    Checked before single sign-on is enforced, so that an organization isn't locked out.
    """
    owners = Membership.objects.filter(organization=organization, role=Role.OWNER)
    owner_identities = Identity.objects.filter(
        organization=organization,
        provider__enabled=True,
        used_at__isnull=False,
        user__in=owners.values("user"),
    )
    if not owner_identities.exists():
        raise Conflict(
            "No owner has signed in with an identity provider yet.",
            code="sso_not_tested",
            field="single_sign_on",
            remedy="Add an identity provider, sign in with it as an owner, then require it for "
            "everyone.",
        )


def _require_other_provider(provider: Provider) -> None:
    lock_row(provider.organization)
    provider.organization.refresh_from_db()
    other_providers = Provider.objects.enabled().filter(organization=provider.organization_id)
    if (
        provider.organization.single_sign_on
        and not other_providers.exclude(pk=provider.pk).exists()
    ):
        raise Conflict(
            "All members must sign in with this identity provider.",
            code="sso_required",
            field="enabled",
            remedy="Allow members to sign in with a password first.",
        )


def _save_provider(provider: Provider, **options: Any) -> None:
    try:
        with transaction.atomic():
            provider.save(**options)
    except IntegrityError:
        raise Conflict(
            "An identity provider with this issuer and client ID already exists.",
            code="provider_taken",
            field="client_id",
            remedy="Change the existing identity provider instead.",
        ) from None


def _set_fields(principal: Principal, provider: Provider, values: Mapping[str, Any]) -> None:
    url_changes = values.get("url", provider.url) != provider.url
    # Changing the URL of a provider that allows private addresses needs the permission, too.
    if values.get("allow_private", provider.allow_private) and (
        url_changes or not provider.allow_private
    ):
        principal.require(Action.ALLOW_PRIVATE_ADDRESS)
    external_issuers.set_signer_fields(
        provider, format_message("An identity provider"), values, FIELD_CLEANERS
    )
    if not provider.domains and (provider.creates or provider.trusts_email):
        raise InvalidInput(
            "Email domains are required to create accounts or trust email addresses.",
            field="domains",
            remedy="Enter the email domains of your members.",
        )


def _clean_domains(name: str, value: Any) -> list[str]:
    domains = list(dict.fromkeys(str(domain).strip().lower().lstrip("@") for domain in value or ()))
    if invalid := next(
        (domain for domain in domains if not DOMAIN_PATTERN.fullmatch(domain)), None
    ):
        raise InvalidInput(
            format_message("{name!r} isn't a domain.", name=invalid),
            field=name,
            remedy="Use a domain such as example.com.",
        )
    if len(domains) > MAX_DOMAINS:
        raise InvalidInput(
            "There are too many domains.",
            field=name,
            remedy=format_message("Use at most {most_domains} domains.", most_domains=MAX_DOMAINS),
        )
    return domains


def _clean_secret(name: str, value: Any) -> str:
    text = str(value or "")
    if len(text) > MAX_SECRET_LENGTH:
        raise InvalidInput(
            "The secret is too long.",
            field=name,
            remedy=format_message("Use at most {limit} characters.", limit=MAX_SECRET_LENGTH),
        )
    return text


FIELD_CLEANERS: dict[str, Callable[[str, Any], Any]] = {
    **{
        name: external_issuers.FIELD_CLEANERS[name]
        for name in ("name", "url", "role", "role_claim", "roles", "allow_private", "announced")
    },
    "client_id": external_issuers.FIELD_CLEANERS["subject_claim"],
    "client_secret": _clean_secret,
    "domains": _clean_domains,
    **dict.fromkeys(
        ("trusts_email", "creates", "second_factor", "enabled"),
        external_issuers.FIELD_CLEANERS["enabled"],
    ),
}


def _record_change(
    principal: Principal, provider: Provider, action: str, values: Mapping[str, Any]
) -> AbstractContextManager[Any]:
    details = {name: MASK if name == "client_secret" else value for name, value in values.items()}
    return record_change(
        **describe_row("provider", provider),
        actor=principal.actor,
        action=action,
        details=details,
        governed=False,
    )
