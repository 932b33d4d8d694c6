"""The addresses of the authorization server: who we are, the page that asks, and tokens."""

import json
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods, require_POST
from oauth2_provider.oauth2_backends import get_oauthlib_core

from bonobot.admin import site
from bonobot.authority import asked, registering, registration
from bonobot.authority.asked import Asked, Refused
from bonobot.authority.offers import Choice, Offer, give, offers, usual
from bonobot.lib.headers import HEADER, STRICT, policy
from bonobot.lib.problems import Problem
from bonobot.lib.sayings import say
from bonobot.tenancy.active import SESSION_KEY
from bonobot.tenancy.grants import SCOPES
from bonobot.tenancy.models import ROLE_CHOICES
from bonobot.tenancy.roles import Role
from bonobot.tenancy.roles_page import SCOPE_MEANS
from bonobot.tenancy.sign_on import usable_organizations

JSON = {"Content-Type": "application/json"}
LONGEST_BODY = 64 * 1024
ROLE_NAMES = dict(ROLE_CHOICES)
ROLE_MEANS = {
    Role.MEMBER: _("runs the agents that you choose, and uses their tools"),
    Role.AUDITOR: _("reads everything, the audit too"),
    Role.REVIEWER: _("reads everything, the audit too"),
    Role.OPERATOR: _("uses and manages agents, servers and workflows"),
    Role.OWNER: _("all that programs may do in the organization"),
}


@login_not_required
@require_GET
def metadata(request: HttpRequest) -> HttpResponse:
    """Say where things are and what is taken (RFC 8414)."""
    found = {
        "issuer": settings.BONOBOT_URL,
        "authorization_endpoint": _at("authority:authorize"),
        "token_endpoint": _at("authority:token"),
        "revocation_endpoint": _at("authority:revoke"),
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none"],
        "revocation_endpoint_auth_methods_supported": ["none"],
        "scopes_supported": [scope.value for scope in SCOPES],
        "authorization_response_iss_parameter_supported": True,
        "client_id_metadata_document_supported": settings.BONOBOT_OAUTH_DOCUMENTS,
    }
    if settings.BONOBOT_OAUTH_REGISTRATION:
        found["registration_endpoint"] = _at("authority:register")
    return JsonResponse(found, headers={"Cache-Control": "public, max-age=300"})


@never_cache
@require_http_methods(["GET", "POST"])
def authorize(request: HttpRequest) -> HttpResponse:
    """Ask the person who is signed in whether the program may be let in, and send it the answer."""
    user: Any = request.user
    try:
        wanted = asked.read(request)
    except Refused as problem:
        if request.method == "POST" and problem.back:
            return _Away(problem.back)
        return _refusal(request, problem)
    if request.method == "POST" and request.POST.get("answer") == "deny":
        return _Away(wanted.denied())
    offered = offers(user, usable_organizations(request), wanted.address)
    if not offered:
        return _refusal(request, _nothing_to_give(wanted))
    offer = _chosen(request, offered)
    if request.method == "GET" or request.POST.get("answer") != "allow":
        return _question(request, wanted, offered, offer)
    try:
        return _Away(_given(request, wanted, offer))
    except Problem as problem:
        return _question(request, wanted, offered, offer, problem)


@sensitive_post_parameters()
@csrf_exempt
@login_not_required
@never_cache
@require_POST
def token(request: HttpRequest) -> HttpResponse:
    """Give a program its tokens, for a code or a refresh token (RFC 6749)."""
    _to, headers, body, status = get_oauthlib_core().create_token_response(request)
    return HttpResponse(body, status=status, headers=JSON | headers)


@sensitive_post_parameters()
@csrf_exempt
@login_not_required
@never_cache
@require_POST
def revoke(request: HttpRequest) -> HttpResponse:
    """End what a program was given, because it says so (RFC 7009)."""
    _to, headers, body, status = get_oauthlib_core().create_revocation_response(request)
    return HttpResponse(body or "", status=status, headers=JSON | headers)


@csrf_exempt
@login_not_required
@never_cache
@require_POST
def register(request: HttpRequest) -> HttpResponse:
    """Take up a program that nobody knows (RFC 7591)."""
    if not settings.BONOBOT_OAUTH_REGISTRATION:
        return JsonResponse({"error": "not_found"}, status=404)
    try:
        registering.check(request.META.get("REMOTE_ADDR", ""))
        program = registration.read(_said(request))
    except Problem as problem:
        told = {"error": problem.code, "error_description": problem.detail}
        return JsonResponse(told, status=problem.status)
    return JsonResponse(registration.answered(registration.register(program)), status=201)


def _said(request: HttpRequest) -> dict[str, Any]:
    if len(request.body) > LONGEST_BODY:
        raise registration.BadMetadata("It is too long.")
    try:
        said = json.loads(request.body)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise registration.BadMetadata("Send a JSON object.")
    return said


class _Away(HttpResponseRedirect):
    """A redirect to a program; where it leads was looked at, and a person has sent it."""

    status_code = 303

    def __init__(self, to: str) -> None:
        self.allowed_schemes = [to.partition(":")[0]]
        super().__init__(to)
        self["Referrer-Policy"] = "no-referrer"


def _at(name: str) -> str:
    return f"{settings.BONOBOT_URL}{reverse(name)}"


def _chosen(request: HttpRequest, offered: list[Offer]) -> Offer:
    """Return the offer of the organization that is named, else worked in, else the first."""
    named = request.POST.get("organization") or request.GET.get("organization")
    slug = named or request.session.get(SESSION_KEY)
    return next((one for one in offered if one.organization.slug == slug), offered[0])


def _given(request: HttpRequest, wanted: Asked, offer: Offer) -> str:
    said = request.POST
    choice = Choice(said.get("role", ""), said.getlist("scopes"), said.getlist("agents"))
    user: Any = request.user
    with transaction.atomic():
        grant = give(user, wanted, offer, choice)
        return wanted.granted(request, grant, tuple(grant.scopes))


def _question(
    request: HttpRequest,
    wanted: Asked,
    offered: list[Offer],
    offer: Offer,
    problem: Problem | None = None,
) -> HttpResponse:
    sent = request.POST if request.method == "POST" else None
    chosen = sent.getlist("scopes") if sent else usual(wanted)
    only = [pk for pk, _name in offer.agents] if len(offer.agents) == 1 else []
    agents = sent.getlist("agents") if sent else only
    role = sent.get("role") if sent else offer.roles[0]
    return _page(
        request,
        "authority/consent.html",
        wanted.destination.sources,
        problem=problem,
        wanted=wanted,
        offer=offer,
        others=[one.organization for one in offered if one is not offer],
        query=_query(request),
        roles=[(one, ROLE_NAMES[one], ROLE_MEANS[one], one == role) for one in offer.roles],
        scopes=[(one, SCOPE_MEANS[one], one in chosen) for one in SCOPES if one in wanted.scopes],
        agents=[(pk, name, pk in agents) for pk, name in offer.agents],
        status=problem.status if problem else 200,
    )


def _refusal(request: HttpRequest, problem: Problem) -> HttpResponse:
    sources = getattr(problem, "sources", "") or "'self'"
    return _page(request, "authority/refused.html", sources, problem=problem, status=problem.status)


def _nothing_to_give(wanted: Asked) -> Refused:
    return Refused(
        say(
            "There is nothing at `{resource}` that you could let a program use.",
            resource=wanted.resource,
        ),
        code="nothing_to_give",
        back=wanted.denied(),
        sources=wanted.destination.sources,
    )


def _query(request: HttpRequest) -> str:
    """Return the query without the organization, for choosing another one."""
    rest = request.GET.copy()
    rest.pop("organization", None)
    return rest.urlencode()


def _page(
    request: HttpRequest, template: str, sources: str, *, status: int, **context: Any
) -> HttpResponse:
    """Render a page of the admin's look that leads to nothing but the program."""
    found = render(request, template, site.each_context(request) | context, status=status)
    found[HEADER] = policy(STRICT | {"form-action": sources})
    return found
