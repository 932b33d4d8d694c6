"""The way to an identity provider and back, in the look of the login; linking one's own account."""

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

from bonobot.lib.problems import NotFound, Problem
from bonobot.lib.runtime import runtime
from bonobot.tenancy import arriving, openid, providers
from bonobot.tenancy.active import SESSION_KEY
from bonobot.tenancy.attempts import SIGN_IN_ADDRESS, attempt
from bonobot.tenancy.models import Identity, Membership, Provider
from bonobot.tenancy.screens.answers import back, screen, tell
from bonobot.tenancy.screens.outside import outside
from bonobot.tenancy.sign_on import begin_session, organizations_of
from bonobot.tenancy.signing_in import BACKEND, sign_in

logger = logging.getLogger(__name__)

UNDER_WAY = "single_sign_on_under_way"
UNDER_WAY_S = 600


@login_not_required
@never_cache
def choose(request: HttpRequest) -> HttpResponseBase:
    """Show where somebody who is signed in by password has to sign in for their organization."""
    user: Any = request.user
    mine = Membership.objects.filter(user=user.pk, organization__single_sign_on=True)
    found = Provider.objects.enabled().filter(organization__in=mine.values("organization"))
    return outside(
        request,
        "sign_on.html",
        title=_("Sign in by your organization"),
        providers=found[: providers.MOST_SHOWN],
    )


@login_not_required
@never_cache
def entry(request: HttpRequest, provider_id: str) -> HttpResponseBase:
    """Lead to a provider (POST), or show that it is one."""
    try:
        attempt(SIGN_IN_ADDRESS, request.META.get("REMOTE_ADDR", ""))
        provider = _provider(pk=provider_id)
        if request.method != "POST":
            return outside(request, "sign_on.html", title=_("Sign in"), providers=[provider])
        address = _begun(request, provider)
    except Problem as problem:
        return _told(request, problem)
    # A link, not a redirect: pages may send forms to nobody but us.
    return outside(request, "onward.html", title=provider.name, address=address)


@login_not_required
@never_cache
def done(request: HttpRequest, organization_id: str) -> HttpResponseBase:
    """Take what the provider sent the browser back with: a person signs in, or links."""
    kept = request.session.pop(UNDER_WAY, None) or {}
    if kept:
        request.session.save()  # it is used up, also where the answer is a 502 or 503
    try:
        attempt(SIGN_IN_ADDRESS, request.META.get("REMOTE_ADDR", ""))
        if kept.get("until", 0) < time.time():
            raise _lost()
        provider = _provider(pk=kept["provider"], organization=organization_id)
        arrival = runtime().call(openid.finish, providers.client_of(provider), kept, _said(request))
        if kept["link"]:
            return _linked(request, provider, arrival, kept["link"])
        return _signed_in(request, provider, arrival, kept["next"])
    except Problem as problem:
        return _told(request, problem)


def link(request: HttpRequest, provider_id: str) -> HttpResponseBase:
    """Lead a signed-in person to a provider, to join its account to theirs (POST)."""
    provider = _provider(pk=provider_id, organization__in=_reached(request))
    answer: HttpResponseBase = _link(request, provider)
    return answer


@reauthentication_required
def _link(request: HttpRequest, provider: Provider) -> HttpResponseBase:
    if request.method != "POST":
        return screen(request, "profile/link.html", title=provider.name, provider=provider)
    address = _begun(request, provider, link=str(request.user.pk))
    return outside(request, "onward.html", title=provider.name, address=address)


@require_POST
def unlink(request: HttpRequest, identity_id: str) -> HttpResponseBase:
    """Take a provider's account away from one's own."""
    user: Any = request.user
    mine = Identity.objects.filter(user=user, organization__in=_reached(request))
    found = mine.select_related("provider").filter(pk=identity_id).first()
    if found is None:
        raise _unknown()
    try:
        arriving.unlink(user, found)
    except Problem as problem:
        tell(request, problem)
    else:
        messages.success(request, _t("It is not linked any more."))
    return back(request, reverse("admin:profile"))


def _reached(request: HttpRequest) -> Any:
    """Return a person's organizations, as far as the session reaches them.

    One that began at a provider says nothing about how the person signs in elsewhere.
    """
    return organizations_of(request).filter(memberships__user=request.user.pk).values("pk")


def of_person(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the providers that a person may link, each with who they are there."""
    user: Any = request.user
    if user.is_superuser:
        return []  # no provider decides on the platform
    known = {one.provider_id: one for one in Identity.objects.filter(user=user)}
    rows = Provider.objects.enabled().filter(organization__in=_reached(request))[
        : providers.MOST_SHOWN
    ]
    return [{"provider": one, "identity": known.get(one.pk)} for one in rows]


def _begun(request: HttpRequest, provider: Provider, *, link: str = "") -> str:
    begun = runtime().call(openid.begin, providers.client_of(provider))
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


def _said(request: HttpRequest) -> dict[str, str]:
    return {name: request.GET.get(name, "") for name in ("code", "state", "error", "iss")}


def _signed_in(
    request: HttpRequest, provider: Provider, arrival: openid.Arrival, onward: str
) -> HttpResponseBase:
    user = arriving.arrive(provider, arrival)
    begin_session(request, provider, user, arrival.leaving)
    request.session[SESSION_KEY] = provider.organization.slug
    record_authentication(request, user, method="openid", provider=str(provider.pk))
    if provider.second_factor:
        return sign_in(request, user, onward)
    user.backend = BACKEND
    get_adapter().login(request, user)
    return HttpResponseRedirect(onward)


def _linked(
    request: HttpRequest, provider: Provider, arrival: openid.Arrival, whose: str
) -> HttpResponseBase:
    user: Any = request.user
    if str(user.pk) != whose:
        raise _lost()
    arriving.link(provider, arrival, user)
    messages.success(request, _t("You can sign in by %(name)s now.") % {"name": provider.name})
    return HttpResponseRedirect(reverse("admin:profile"))


def _provider(**which: Any) -> Provider:
    found: Provider | None = (
        Provider.objects.enabled().select_related("organization").filter(**which).first()
    )
    if found is None:
        raise _unknown()
    return found


def _told(request: HttpRequest, problem: Problem) -> HttpResponseBase:
    return outside(
        request,
        "ended.html",
        title=_("Sign in"),
        status=problem.status,
        problem=problem,
    )


def _unknown() -> NotFound:
    return NotFound(
        "There is no such identity provider, or it is switched off.",
        remedy="Ask whoever gave you the address.",
    )


def _lost() -> NotFound:
    return NotFound(
        "This sign-in was used, took too long or began in another browser.",
        code="sign_in_lost",
        status=400,
        remedy="Begin it again.",
    )
