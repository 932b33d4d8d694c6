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
    SESSION_KEY,
    begin_session,
    list_reachable_organizations,
)
from bonobot.accounts.models import Identity, Membership, Provider
from bonobot.accounts.sso import account_linking, oidc_client
from bonobot.accounts.sso import services as sso
from bonobot.accounts.views.login import BACKEND, render_signed_out_page, sign_in
from bonobot.core.problems import NotFound, Problem
from bonobot.core.runtime import get_runtime

logger = logging.getLogger(__name__)

UNDER_WAY = "single_sign_on_under_way"
UNDER_WAY_S = 600


@login_not_required
@never_cache
def choose(request: HttpRequest) -> HttpResponseBase:
    """List the providers that a user signed in by password must use."""
    user: Any = request.user
    mine = Membership.objects.filter(user=user.pk, organization__single_sign_on=True)
    found = Provider.objects.enabled().filter(organization__in=mine.values("organization"))
    return render_signed_out_page(
        request,
        "sign_on.html",
        title=_("Sign in by your organization"),
        providers=found[: sso.MOST_SHOWN],
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
    return render_signed_out_page(request, "onward.html", title=provider.name, address=address)


@login_not_required
@never_cache
def complete_single_sign_on(request: HttpRequest, organization_id: str) -> HttpResponseBase:
    """Handle the provider's callback: sign in, or link an account."""
    kept = request.session.pop(UNDER_WAY, None) or {}
    if kept:
        request.session.save()  # consume it even if the response is a 502 or 503
    try:
        charge_attempt(SIGN_IN_ADDRESS, request.META.get("REMOTE_ADDR", ""))
        if kept.get("until", 0) < time.time():
            raise _build_sign_in_error()
        provider = _get_provider(pk=kept["provider"], organization=organization_id)
        arrival = get_runtime().call(
            oidc_client.finish,
            sso.build_oidc_client(provider),
            kept,
            _read_callback_parameters(request),
        )
        if kept["link"]:
            return _complete_link(request, provider, arrival, kept["link"])
        return _sign_in_person(request, provider, arrival, kept["next"])
    except Problem as problem:
        return _render_problem(request, problem)


def link(request: HttpRequest, provider_id: str) -> HttpResponseBase:
    """Start linking a provider to the signed-in account (POST)."""
    provider = _get_provider(
        pk=provider_id, organization__in=_list_reachable_organizations(request)
    )
    answer: HttpResponseBase = _link(request, provider)
    return answer


@reauthentication_required
def _link(request: HttpRequest, provider: Provider) -> HttpResponseBase:
    if request.method != "POST":
        return render_screen(request, "profile/link.html", title=provider.name, provider=provider)
    address = _start_authorization(request, provider, link=str(request.user.pk))
    return render_signed_out_page(request, "onward.html", title=provider.name, address=address)


@require_POST
def unlink(request: HttpRequest, identity_id: str) -> HttpResponseBase:
    """Unlink a provider from the signed-in account."""
    user: Any = request.user
    mine = Identity.objects.filter(
        user=user, organization__in=_list_reachable_organizations(request)
    )
    found = mine.select_related("provider").filter(pk=identity_id).first()
    if found is None:
        raise _build_provider_error()
    try:
        account_linking.unlink(user, found)
    except Problem as problem:
        add_problem_message(request, problem)
    else:
        messages.success(request, _t("It is not linked any more."))
    return redirect_back(request, reverse("admin:profile"))


def _list_reachable_organizations(request: HttpRequest) -> Any:
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
    known = {one.provider_id: one for one in Identity.objects.filter(user=user)}
    rows = Provider.objects.enabled().filter(
        organization__in=_list_reachable_organizations(request)
    )[: sso.MOST_SHOWN]
    return [{"provider": one, "identity": known.get(one.pk)} for one in rows]


def _start_authorization(request: HttpRequest, provider: Provider, *, link: str = "") -> str:
    begun = get_runtime().call(oidc_client.begin, sso.build_oidc_client(provider))
    onward = request.POST.get("next", "")
    ours = url_has_allowed_host_and_scheme(
        onward, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    request.session[UNDER_WAY] = begun.kept | {
        "provider": str(provider.pk),
        "link": link,
        "next": onward if ours else reverse("admin:index"),
        "until": time.time() + UNDER_WAY_S,
    }
    return begun.address


def _read_callback_parameters(request: HttpRequest) -> dict[str, str]:
    return {name: request.GET.get(name, "") for name in ("code", "state", "error", "iss")}


def _sign_in_person(
    request: HttpRequest, provider: Provider, arrival: oidc_client.ProviderUser, onward: str
) -> HttpResponseBase:
    user = account_linking.resolve_user(provider, arrival)
    begin_session(request, provider, user, arrival.leaving)
    request.session[SESSION_KEY] = provider.organization.slug
    record_authentication(request, user, method="openid", provider=str(provider.pk))
    if provider.second_factor:
        return sign_in(request, user, onward)
    user.backend = BACKEND
    get_adapter().login(request, user)
    return HttpResponseRedirect(onward)


def _complete_link(
    request: HttpRequest, provider: Provider, arrival: oidc_client.ProviderUser, whose: str
) -> HttpResponseBase:
    user: Any = request.user
    if str(user.pk) != whose:
        raise _build_sign_in_error()
    account_linking.link(provider, arrival, user)
    messages.success(request, _t("You can sign in by %(name)s now.") % {"name": provider.name})
    return HttpResponseRedirect(reverse("admin:profile"))


def _get_provider(**which: Any) -> Provider:
    found: Provider | None = (
        Provider.objects.enabled().select_related("organization").filter(**which).first()
    )
    if found is None:
        raise _build_provider_error()
    return found


def _render_problem(request: HttpRequest, problem: Problem) -> HttpResponseBase:
    return render_signed_out_page(
        request,
        "ended.html",
        title=_("Sign in"),
        status=problem.status,
        problem=problem,
    )


def _build_provider_error() -> NotFound:
    return NotFound(
        "There is no such identity provider, or it is switched off.",
        remedy="Ask whoever gave you the address.",
    )


def _build_sign_in_error() -> NotFound:
    return NotFound(
        "This sign-in was used, took too long or began in another browser.",
        code="sign_in_lost",
        status=400,
        remedy="Begin it again.",
    )
