"""Views of the sign-in: start, callback and client metadata."""

from typing import Any
from uuid import UUID

import httpx2
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.roles import Action
from bonobot.core.http.response_headers import (
    CSP_HEADER,
    STRICT_POLICY,
    build_content_security_policy,
)
from bonobot.core.problems import Problem
from mcp_servers.models import Server
from mcp_servers.oauth_client import authorization_code, client_registration

MAX_PARAMETER_LENGTH = 4096


@never_cache
@require_http_methods(["GET", "POST"])
def start_login(request: HttpRequest, server_id: UUID) -> HttpResponseBase:
    """Ask whether to sign in to a server; redirect the browser when confirmed."""
    user: Any = request.user
    try:
        principal = resolve_principal(request)
        server = Server.objects.get_or_404(principal.organization_id, pk=server_id)
        account = authorization_code.get_login_account(principal, server)
        if request.method == "POST":
            redirect = authorization_code.start_login(
                principal, server, user_id=user.pk, session=_get_session_key(request)
            )
            return _AuthorizationRedirect(redirect.url)
    except Problem as problem:
        return _render_refusal(request, problem)
    response = render(
        request,
        "oauth_client/start.html",
        {
            "server": server,
            "account": account,
            "host": httpx2.URL(account.url).host,
            "scopes": account.scopes,
        },
    )
    # `form-action` also applies to the redirect after the form, to the authorization server.
    schemes = "https: http:" if account.allow_private else "https:"
    response[CSP_HEADER] = build_content_security_policy(
        STRICT_POLICY | {"form-action": f"'self' {schemes}"}
    )
    return response


@never_cache
@require_GET
def complete_login(request: HttpRequest) -> HttpResponseBase:
    user: Any = request.user
    params = {name: request.GET[name][:MAX_PARAMETER_LENGTH] for name in request.GET}
    try:
        principal = resolve_principal(request)
        server = authorization_code.complete_login(
            principal, params, user_id=user.pk, session=_get_session_key(request)
        )
    except Problem as problem:
        return _render_refusal(request, problem)
    if principal.may(Action.MANAGE_SERVERS) and user.is_staff:
        server_url = reverse("admin:mcp_servers_server_change", args=[server.pk])
        return HttpResponseRedirect(f"{server_url}?connect")
    return render(request, "oauth_client/done.html", {"server": server})


@login_not_required
@require_GET
def show_client_metadata(request: HttpRequest) -> HttpResponse:
    """Return our client id metadata document."""
    return JsonResponse(
        client_registration.build_metadata_document(),
        headers={"Cache-Control": "public, max-age=3600"},
    )


class _AuthorizationRedirect(HttpResponseRedirect):
    """A redirect to an authorization server, whose URL was checked before."""

    status_code = 303


def _get_session_key(request: HttpRequest) -> str:
    return request.session.session_key or ""


def _render_refusal(request: HttpRequest, problem: Problem) -> HttpResponse:
    return render(request, "oauth_client/refused.html", {"problem": problem}, status=problem.status)
