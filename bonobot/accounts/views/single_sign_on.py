"""Single sign-on views: redirect to a provider, handle its callback, link accounts."""

import logging
import time
from typing import Any

from allauth.account.adapter import get_adapter
from allauth.account.decorators import reauthentication_required
from allauth.account.internal.flows.login import record_authentication
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from bonobot.accounts.admin_base.responses import add_problem_message, redirect_back, render_screen
from bonobot.accounts.attempt_limits import SIGN_IN_ADDRESS, charge_attempt
from bonobot.accounts.current_organization import (
    ORGANIZATION_SESSION_KEY,
    list_reachable_organizations,
    start_sso_session,
)
from bonobot.accounts.models import Identity, Membership, Provider
from bonobot.accounts.sso import account_linking, oidc_client
from bonobot.accounts.sso import identity_providers as sso
from bonobot.accounts.sso.claims import ProviderUser
from bonobot.accounts.views.login import BACKEND, render_signed_out_page, sign_in
from bonobot.core.problems import NotFound, Problem
from bonobot.core.runtime import get_runtime

logger = logging.getLogger(__name__)

PENDING_SIGN_IN_KEY = "single_sign_on_under_way"
PENDING_SIGN_IN_S = 600


@login_not_required
@never_cache
def choose_provider(request: HttpRequest) -> HttpResponseBase:
    """List the providers that a user signed in by password must use."""
    user: Any = request.user
    memberships = Membership.objects.filter(user=user.pk, organization__single_sign_on=True)
    providers = Provider.objects.enabled().filter(
        organization__in=memberships.values("organization")
    )
    return render_signed_out_page(
        request,
        "sign_on.html",
        title=_("Sign in with your organization"),
        providers=providers[: sso.MAX_PROVIDERS_SHOWN],
    )


@login_not_required
@never_cache
def start_single_sign_on(request: HttpRequest, provider_id: str) -> HttpResponseBase:
    """Start a sign-in at a provider (POST), or show a page to do so."""
    try:
        charge_attempt(SIGN_IN_ADDRESS, request.META.get("REMOTE_ADDR", ""))
        provider = _get_provider(pk=provider_id)
        if request.method != "POST":
            return render_signed_out_page(
                request, "sign_on.html", title=_("Sign in"), providers=[provider]
            )
        address = _start_authorization(request, provider)
    except Problem as problem:
        return _render_problem(request, problem)
    # A link, not a redirect: the CSP `form-action` covers redirects and allows only our origin.
    return render_signed_out_page(request, "redirect.html", title=provider.name, address=address)


@login_not_required
@never_cache
def complete_single_sign_on(request: HttpRequest, organization_id: str) -> HttpResponseBase:
    """Handle the provider's callback: sign in, or link an account."""
    session_data = request.session.pop(PENDING_SIGN_IN_KEY, None) or {}
    if session_data:
        request.session.save()  # consume it even if the response is a 502 or 503
    try:
        charge_attempt(SIGN_IN_ADDRESS, request.META.get("REMOTE_ADDR", ""))
        if session_data.get("until", 0) < time.time():
            raise _build_sign_in_error()
        provider = _get_provider(pk=session_data["provider"], organization=organization_id)
        provider_user = get_runtime().call(
            oidc_client.complete_sign_in,
            sso.build_oidc_client(provider),
            session_data,
            _read_callback_parameters(request),
        )
        if session_data["link"]:
            return _complete_link(request, provider, provider_user, session_data["link"])
        return _sign_in_person(request, provider, provider_user, session_data["next"])
    except Problem as problem:
        return _render_problem(request, problem)


def link_provider(request: HttpRequest, provider_id: str) -> HttpResponseBase:
    """Start linking a provider to the signed-in account (POST)."""
    provider = _get_provider(pk=provider_id, organization__in=_query_member_organizations(request))
    response: HttpResponseBase = _render_link(request, provider)
    return response


@reauthentication_required
def _render_link(request: HttpRequest, provider: Provider) -> HttpResponseBase:
    if request.method != "POST":
        return render_screen(
            request, "profile/link_identity_provider.html", title=provider.name, provider=provider
        )
    address = _start_authorization(request, provider, link_user_id=str(request.user.pk))
    return render_signed_out_page(request, "redirect.html", title=provider.name, address=address)


@require_POST
def unlink_identity(request: HttpRequest, identity_id: str) -> HttpResponseBase:
    """Unlink a provider from the signed-in account."""
    user: Any = request.user
    identities = Identity.objects.filter(
        user=user, organization__in=_query_member_organizations(request)
    )
    identity = identities.select_related("provider").filter(pk=identity_id).first()
    if identity is None:
        raise _build_provider_error()
    try:
        account_linking.unlink_identity(user, identity)
    except Problem as problem:
        add_problem_message(request, problem)
    else:
        messages.success(request, _t("The identity provider is no longer linked."))
    return redirect_back(request, reverse("admin:profile"))


def _query_member_organizations(request: HttpRequest) -> Any:
    """Return the ids of a user's organizations that the session reaches.

    A session that began at a provider must not change sign-ins of other organizations.
    """
    return (
        list_reachable_organizations(request).filter(memberships__user=request.user.pk).values("pk")
    )


def list_linkable_providers(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the providers that a user may link, each with the linked identity or None."""
    user: Any = request.user
    if user.is_superuser:
        return []  # providers can't sign in superusers
    identities = {item.provider_id: item for item in Identity.objects.filter(user=user)}
    rows = Provider.objects.enabled().filter(organization__in=_query_member_organizations(request))[
        : sso.MAX_PROVIDERS_SHOWN
    ]
    return [{"provider": item, "identity": identities.get(item.pk)} for item in rows]


def _start_authorization(
    request: HttpRequest, provider: Provider, *, link_user_id: str = ""
) -> str:
    pending = get_runtime().call(oidc_client.start_sign_in, sso.build_oidc_client(provider))
    next_url = request.POST.get("next", "")
    is_own_url = url_has_allowed_host_and_scheme(
        next_url, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    request.session[PENDING_SIGN_IN_KEY] = pending.session_data | {
        "provider": str(provider.pk),
        "link": link_user_id,
        "next": next_url if is_own_url else reverse("admin:index"),
        "until": time.time() + PENDING_SIGN_IN_S,
    }
    return pending.authorization_url


def _read_callback_parameters(request: HttpRequest) -> dict[str, str]:
    return {name: request.GET.get(name, "") for name in ("code", "state", "error", "iss")}


def _sign_in_person(
    request: HttpRequest, provider: Provider, provider_user: ProviderUser, next_url: str
) -> HttpResponseBase:
    user = account_linking.resolve_user(provider, provider_user)
    start_sso_session(request, provider, user, provider_user.logout_url)
    request.session[ORGANIZATION_SESSION_KEY] = provider.organization.slug
    record_authentication(request, user, method="openid", provider=str(provider.pk))
    if provider.second_factor:
        return sign_in(request, user, next_url)
    user.backend = BACKEND
    get_adapter().login(request, user)
    return HttpResponseRedirect(next_url)


def _complete_link(
    request: HttpRequest, provider: Provider, provider_user: ProviderUser, user_id: str
) -> HttpResponseBase:
    user: Any = request.user
    if str(user.pk) != user_id:
        raise _build_sign_in_error()
    account_linking.link_identity(provider, provider_user, user)
    messages.success(request, _t("You can now sign in with %(name)s.") % {"name": provider.name})
    return HttpResponseRedirect(reverse("admin:profile"))


def _get_provider(**lookup: Any) -> Provider:
    provider: Provider | None = (
        Provider.objects.enabled().select_related("organization").filter(**lookup).first()
    )
    if provider is None:
        raise _build_provider_error()
    return provider


def _render_problem(request: HttpRequest, problem: Problem) -> HttpResponseBase:
    return render_signed_out_page(
        request,
        "link_expired.html",
        title=_("Sign in"),
        status=problem.status,
        problem=problem,
    )


def _build_provider_error() -> NotFound:
    return NotFound(
        "This identity provider doesn't exist or is disabled.",
        remedy="Contact the person who gave you the URL.",
    )


def _build_sign_in_error() -> NotFound:
    return NotFound(
        "This sign-in has already been used, took too long, or was started in another browser.",
        code="sign_in_expired",
        status=400,
        remedy="Start again.",
    )
