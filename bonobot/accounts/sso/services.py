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
from bonobot.core.crypto.stored_secrets import keep_with_addresses
from bonobot.core.http.egress import EgressDenied
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.runtime import get_runtime
from bonobot.core.text.masking import MASK
from bonobot.ledger.audit.admin_changes import record_change

MOST_DOMAINS = 100
LONGEST_SECRET = 4_096
MOST_SHOWN = 20
DOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})+")


def redirect_uri(organization_id: UUID) -> str:
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
        redirect_uri=redirect_uri(provider.organization_id),
        allow_private=provider.allow_private,
    )


def list_announced_providers() -> list[Provider]:
    """Return the providers that the sign-in page shows (a query)."""
    return list(Provider.objects.enabled().filter(announced=True)[:MOST_SHOWN])


def add(principal: Principal, **said: Any) -> Provider:
    """Create a provider; `name`, `url` and `client_id` are required.

    Raises `InvalidInput`, `Forbidden`, `EgressDenied`, `Conflict` (`provider_taken`).
    """
    principal.require(Action.MANAGE_ORGANIZATION)
    provider = Provider(organization_id=principal.organization_id)
    _set(principal, provider, {"name": "", "url": "", "client_id": ""} | said)
    with _record_change(principal, provider, "provider_added", said):
        _save(provider, force_insert=True)
    return provider


def update_provider(principal: Principal, provider: Provider, **said: Any) -> None:
    """Update a provider; disabling it ends its sessions. Raises like `create_provider`.

    A new issuer URL deletes the identities, as subjects mean other users there.
    """
    principal.require(Action.MANAGE_ORGANIZATION)
    said = {name: value for name, value in said.items() if value != MASK}
    before = {name: getattr(provider, name) for name in CHECKS}
    _set(principal, provider, said)
    if provider.client_secret and "client_secret" not in said:
        keep_with_addresses(["client_secret"], {"url": before["url"]}, {"url": provider.url})
    changed = [
        name
        for name in said
        if before[name] != getattr(provider, name) and (before[name] or getattr(provider, name))
    ]
    if not changed:
        return
    if "enabled" in changed and not provider.enabled:
        _require_another(provider)
    with _record_change(
        principal, provider, "provider_changed", {name: said[name] for name in changed}
    ):
        if "url" in changed:
            Identity.objects.filter(provider=provider).delete()
        _save(provider)


def remove(principal: Principal, provider: Provider) -> None:
    """Delete a provider; accounts and memberships are kept."""
    principal.require(Action.MANAGE_ORGANIZATION)
    _require_another(provider)
    with _record_change(principal, provider, "provider_removed", {}):
        provider.delete()


def check(principal: Principal, provider: Provider) -> int:
    """Fetch a provider's metadata and keys and return the number of keys.

    Raises `IdentityProviderProblem`, `IssuerUnreachable`.
    """
    principal.require(Action.MANAGE_ORGANIZATION)
    get_runtime().call(oidc_client.begin, build_oidc_client(provider))
    whose = jwks.IssuerAddress(provider.url, provider.allow_private)
    return len(get_runtime().call(jwks.get_jwks_cache().read, whose).keys)


def require_tried(organization: Organization) -> None:
    """Raise `Conflict` (`sso_untried`) unless an owner has signed in with a provider.

    Checked before single sign-on is enforced, so that an organization isn't locked out.
    """
    owners = Membership.objects.filter(organization=organization, role=Role.OWNER)
    known = Identity.objects.filter(
        organization=organization,
        provider__enabled=True,
        used_at__isnull=False,
        user__in=owners.values("user"),
    )
    if not known.exists():
        raise Conflict(
            "No owner has signed in by an identity provider yet.",
            code="sso_untried",
            field="single_sign_on",
            remedy="Add a provider, sign in by it as an owner, then ask it of everybody.",
        )


def _require_another(provider: Provider) -> None:
    others = Provider.objects.enabled().filter(organization=provider.organization_id)
    if provider.organization.single_sign_on and not others.exclude(pk=provider.pk).exists():
        raise Conflict(
            "Everybody has to sign in by this provider.",
            code="sso_needed",
            field="enabled",
            remedy="Let the organization's people sign in by password first.",
        )


def _save(provider: Provider, **how: Any) -> None:
    try:
        with transaction.atomic():
            provider.save(**how)
    except IntegrityError:
        raise Conflict(
            "There is a provider with this issuer and client id already.",
            code="provider_taken",
            field="client_id",
            remedy="Change the provider that there is.",
        ) from None


def _set(principal: Principal, provider: Provider, said: Mapping[str, Any]) -> None:
    if strange := sorted(set(said) - set(CHECKS)):
        raise InvalidInput(
            format_message(
                "An identity provider has no {strange!r} that could be set.", strange=strange[0]
            ),
            field=strange[0],
            remedy=format_message("There are: {checks}.", checks=", ".join(sorted(CHECKS))),
        )
    moved = said.get("url", provider.url) != provider.url
    # Changing the URL of a provider that allows private addresses needs the permission, too.
    if said.get("allow_private", provider.allow_private) and (moved or not provider.allow_private):
        principal.require(Action.ALLOW_PRIVATE_ADDRESS)
    for name, value in said.items():
        setattr(provider, name, CHECKS[name](name, value))
    try:
        jwks.check(provider.url, allow_private=provider.allow_private)
    except EgressDenied as problem:
        problem.field = "url"
        raise
    if not (provider.role or provider.role_claim):
        raise InvalidInput(
            "Nobody would have a role.",
            field="role",
            remedy="Choose a role for all, or name the claim that gives one.",
        )
    if not provider.domains and (provider.creates or provider.trusts_email):
        raise InvalidInput(
            "Whose addresses are believed must be said.",
            field="domains",
            remedy="Name the e-mail domains of your people.",
        )


def _clean_domains(name: str, value: Any) -> list[str]:
    found = list(dict.fromkeys(str(one).strip().lower().lstrip("@") for one in value or ()))
    if wrong := next((one for one in found if not DOMAIN.fullmatch(one)), None):
        raise InvalidInput(
            format_message("{wrong!r} is no domain.", wrong=wrong),
            field=name,
            remedy="Write it like example.com.",
        )
    if len(found) > MOST_DOMAINS:
        raise InvalidInput(
            "These are too many.",
            field=name,
            remedy=format_message("{most_domains} at most.", most_domains=MOST_DOMAINS),
        )
    return found


def _clean_secret(name: str, value: Any) -> str:
    text = str(value or "")
    if len(text) > LONGEST_SECRET:
        raise InvalidInput(
            "The secret is too long.",
            field=name,
            remedy=format_message("{longest_secret} at most.", longest_secret=LONGEST_SECRET),
        )
    return text


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **{
        name: external_issuers.CHECKS[name]
        for name in ("name", "url", "role", "role_claim", "roles", "allow_private", "announced")
    },
    "client_id": external_issuers.CHECKS["subject_claim"],
    "client_secret": _clean_secret,
    "domains": _clean_domains,
    **dict.fromkeys(
        ("trusts_email", "creates", "second_factor", "enabled"), external_issuers.CHECKS["enabled"]
    ),
}


def _record_change(
    principal: Principal, provider: Provider, action: str, said: Mapping[str, Any]
) -> AbstractContextManager[Any]:
    told = {name: MASK if name == "client_secret" else value for name, value in said.items()}
    return record_change(
        organization_id=provider.organization_id,
        actor=principal.actor,
        action=action,
        resource_type="provider",
        resource_id=str(provider.pk),
        resource_name=provider.name,
        details=told,
        governed=False,
    )
