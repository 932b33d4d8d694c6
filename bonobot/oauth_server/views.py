"""Views of the authorization server: metadata, consent page, tokens, revocation, registration."""

import json
from typing import Any

from django.conf import settings
from django.contrib import admin
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

from bonobot.accounts.current_organization import (
    ORGANIZATION_SESSION_KEY,
    list_usable_organizations,
)
from bonobot.accounts.roles import ROLE_CHOICES, SCOPE_DESCRIPTIONS, Role
from bonobot.accounts.tokens.oauth_grants import GRANT_SCOPES
from bonobot.core.http.response_headers import (
    CSP_HEADER,
    STRICT_POLICY,
    build_content_security_policy,
)
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.oauth_server import authorization_requests, client_registration
from bonobot.oauth_server.authorization_requests import AuthorizationRefused, AuthorizationRequest
from bonobot.oauth_server.consent import (
    ConsentChoice,
    ConsentOption,
    get_default_scopes,
    grant_consent,
    list_consent_options,
)

JSON_HEADERS = {"Content-Type": "application/json"}
MAX_BODY_BYTES = 64 * 1024
ROLE_NAMES = dict(ROLE_CHOICES)
ROLE_DESCRIPTIONS = {
    Role.MEMBER: _("runs the agents you choose and uses their tools"),
    Role.AUDITOR: _("reads everything, including the audit log"),
    Role.REVIEWER: _("reads everything, including the audit log"),
    Role.OPERATOR: _("uses and manages agents, servers, and workflows"),
    Role.OWNER: _("everything that clients can do in the organization"),
}


@login_not_required
@require_GET
def serve_metadata(request: HttpRequest) -> HttpResponse:
    """Return the authorization server metadata (RFC 8414)."""
    metadata = {
        "issuer": settings.BONOBOT_URL,
        "authorization_endpoint": _build_url("oauth_server:authorize"),
        "token_endpoint": _build_url("oauth_server:token"),
        "revocation_endpoint": _build_url("oauth_server:revoke"),
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none"],
        "revocation_endpoint_auth_methods_supported": ["none"],
        "scopes_supported": [scope.value for scope in GRANT_SCOPES],
        "authorization_response_iss_parameter_supported": True,
        "client_id_metadata_document_supported": settings.BONOBOT_OAUTH_DOCUMENTS,
    }
    if settings.BONOBOT_OAUTH_REGISTRATION:
        metadata["registration_endpoint"] = _build_url("oauth_server:register")
    return JsonResponse(metadata, headers={"Cache-Control": "public, max-age=300"})


@never_cache
@require_http_methods(["GET", "POST"])
def authorize(request: HttpRequest) -> HttpResponse:
    """Show the consent page to the signed-in user and redirect with the answer."""
    user: Any = request.user
    try:
        authorization_request = authorization_requests.read_authorization_request(request)
    except AuthorizationRefused as problem:
        if request.method == "POST" and problem.redirect_url:
            return _ClientRedirect(problem.redirect_url)
        return _render_refusal(request, problem)
    if request.method == "POST" and request.POST.get("answer") == "deny":
        return _ClientRedirect(authorization_request.build_denial_redirect())
    options = list_consent_options(
        user, list_usable_organizations(request), authorization_request.address
    )
    if not options:
        return _render_refusal(request, _build_empty_consent_error(authorization_request))
    option = _choose_option(request, options)
    if request.method == "GET" or request.POST.get("answer") != "allow":
        return _render_consent_page(request, authorization_request, options, option)
    try:
        return _ClientRedirect(_grant_consent(request, authorization_request, option))
    except Problem as problem:
        return _render_consent_page(request, authorization_request, options, option, problem)


@sensitive_post_parameters()
@csrf_exempt
@login_not_required
@never_cache
@require_POST
def issue_tokens(request: HttpRequest) -> HttpResponse:
    """Issue tokens for a code or a refresh token (RFC 6749)."""
    _to, headers, body, status = get_oauthlib_core().create_token_response(request)
    return HttpResponse(body, status=status, headers=JSON_HEADERS | headers)


@sensitive_post_parameters()
@csrf_exempt
@login_not_required
@never_cache
@require_POST
def revoke_token(request: HttpRequest) -> HttpResponse:
    """Revoke a token at the client's request (RFC 7009)."""
    _to, headers, body, status = get_oauthlib_core().create_revocation_response(request)
    return HttpResponse(body or "", status=status, headers=JSON_HEADERS | headers)


@csrf_exempt
@login_not_required
@never_cache
@require_POST
def register_client(request: HttpRequest) -> HttpResponse:
    """Register a client (RFC 7591)."""
    if not settings.BONOBOT_OAUTH_REGISTRATION:
        return JsonResponse({"error": "not_found"}, status=404)
    try:
        client_registration.check_registration_rate(request.META.get("REMOTE_ADDR", ""))
        metadata = client_registration.parse_client_metadata(_read_json_body(request))
    except Problem as problem:
        error = {"error": problem.code, "error_description": problem.detail}
        return JsonResponse(error, status=problem.status)
    return JsonResponse(
        client_registration.build_registration_response(
            client_registration.create_client(metadata)
        ),
        status=201,
    )


def _read_json_body(request: HttpRequest) -> dict[str, Any]:
    if len(request.body) > MAX_BODY_BYTES:
        raise client_registration.InvalidClientMetadata("The request body is too large.")
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise client_registration.InvalidClientMetadata("Send a JSON object.")
    return body


class _ClientRedirect(HttpResponseRedirect):
    """A redirect to a client's checked redirect URI, which may have a custom scheme."""

    status_code = 303

    def __init__(self, url: str) -> None:
        self.allowed_schemes = [url.partition(":")[0]]
        super().__init__(url)
        self["Referrer-Policy"] = "no-referrer"


def _build_url(name: str) -> str:
    return f"{settings.BONOBOT_URL}{reverse(name)}"


def _choose_option(request: HttpRequest, options: list[ConsentOption]) -> ConsentOption:
    """Return the option of the requested organization, the session's, or the first one."""
    requested_slug = request.POST.get("organization") or request.GET.get("organization")
    slug = requested_slug or request.session.get(ORGANIZATION_SESSION_KEY)
    return next((option for option in options if option.organization.slug == slug), options[0])


def _grant_consent(
    request: HttpRequest, authorization_request: AuthorizationRequest, option: ConsentOption
) -> str:
    submitted = request.POST
    choice = ConsentChoice(
        submitted.get("role", ""), submitted.getlist("scopes"), submitted.getlist("agents")
    )
    user: Any = request.user
    with transaction.atomic():
        grant = grant_consent(user, authorization_request, option, choice)
        return authorization_request.create_code_redirect(request, grant, tuple(grant.scopes))


def _render_consent_page(
    request: HttpRequest,
    authorization_request: AuthorizationRequest,
    options: list[ConsentOption],
    option: ConsentOption,
    problem: Problem | None = None,
) -> HttpResponse:
    submitted = request.POST if request.method == "POST" else None
    selected_scopes = (
        submitted.getlist("scopes") if submitted else get_default_scopes(authorization_request)
    )
    default_agents = [pk for pk, _name in option.agents] if len(option.agents) == 1 else []
    agents = submitted.getlist("agents") if submitted else default_agents
    role = submitted.get("role") if submitted else option.roles[0]
    return _render_page(
        request,
        "oauth_server/consent.html",
        authorization_request.destination.form_action_sources,
        problem=problem,
        authorization_request=authorization_request,
        option=option,
        other_organizations=[
            other_option.organization for other_option in options if other_option is not option
        ],
        query=_build_query(request),
        roles=[
            (
                other_option,
                ROLE_NAMES[other_option],
                ROLE_DESCRIPTIONS[other_option],
                other_option == role,
            )
            for other_option in option.roles
        ],
        scopes=[
            (other_option, SCOPE_DESCRIPTIONS[other_option], other_option in selected_scopes)
            for other_option in GRANT_SCOPES
            if other_option in authorization_request.scopes
        ],
        agents=[(pk, name, pk in agents) for pk, name in option.agents],
        status=problem.status if problem else 200,
    )


def _render_refusal(request: HttpRequest, problem: Problem) -> HttpResponse:
    sources = getattr(problem, "form_action_sources", "") or "'self'"
    return _render_page(
        request, "oauth_server/refused.html", sources, problem=problem, status=problem.status
    )


def _build_empty_consent_error(authorization_request: AuthorizationRequest) -> AuthorizationRefused:
    return AuthorizationRefused(
        format_message(
            "You can't authorize access to `{resource}`: it doesn't exist, or you don't "
            "have access to it.",
            resource=authorization_request.resource,
        ),
        code="nothing_to_give",
        redirect_url=authorization_request.build_denial_redirect(),
        form_action_sources=authorization_request.destination.form_action_sources,
    )


def _build_query(request: HttpRequest) -> str:
    """Return the query string without the organization, for links to other organizations."""
    query = request.GET.copy()
    query.pop("organization", None)
    return query.urlencode()


def _render_page(
    request: HttpRequest, template: str, sources: str, *, status: int, **context: Any
) -> HttpResponse:
    """Render a page in the admin's style whose forms may only lead to the client."""
    response = render(request, template, admin.site.each_context(request) | context, status=status)
    response[CSP_HEADER] = build_content_security_policy(STRICT_POLICY | {"form-action": sources})
    return response
