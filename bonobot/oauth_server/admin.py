"""Admin pages of authorized clients."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods

from bonobot.accounts.admin_base.responses import render_screen
from bonobot.accounts.current_organization import list_reachable_organizations, resolve_principal
from bonobot.accounts.roles import ROLE_CHOICES, SCOPE_DESCRIPTIONS
from bonobot.core.text.untrusted_text import make_visible
from bonobot.oauth_server import authorized_clients

MAX_NAME_LENGTH = 120
ROLE_NAMES = dict(ROLE_CHOICES)


@require_http_methods(["GET", "POST"])
def show_own_grants(request: HttpRequest) -> HttpResponseBase:
    """Show the user's grants in all organizations, or revoke one."""
    user: Any = request.user
    if request.method == "POST":
        grant = authorized_clients.revoke_own_grant(
            user, list_reachable_organizations(request), request.POST.get("grant", "")
        )
        message = _t("Access for %(program)s was revoked.") % {
            "program": make_visible(grant.client, MAX_NAME_LENGTH)
        }
        messages.success(request, message)
        return HttpResponseRedirect(reverse("admin:authorized_clients"))
    rows = authorized_clients.list_own_grants(user, list_reachable_organizations(request))
    return render_screen(
        request,
        "oauth_clients/authorized_clients.html",
        title=_("Authorized clients"),
        rows=[
            (client_grant, ROLE_NAMES[client_grant.grant.role], _describe_scopes(client_grant))
            for client_grant in rows
        ],
    )


@require_http_methods(["GET", "POST"])
def show_organization_clients(request: HttpRequest) -> HttpResponseBase:
    """Show the clients authorized by members of the organization, or remove one."""
    principal = resolve_principal(request)
    if request.method == "POST":
        count = authorized_clients.revoke_client(principal, request.POST.get("program", ""))
        text = ngettext(
            "Client deleted. %(n)d grant revoked.", "Client deleted. %(n)d grants revoked.", count
        )
        messages.success(request, text % {"n": count})
        return HttpResponseRedirect(reverse("admin:oauth_clients"))
    clients = authorized_clients.list_authorized_clients(principal)
    return render_screen(
        request, "oauth_clients/list.html", title=_("OAuth clients"), clients=clients
    )


def _describe_scopes(client_grant: authorized_clients.ClientGrant) -> list[tuple[str, Any]]:
    return [(scope, SCOPE_DESCRIPTIONS.get(scope, scope)) for scope in client_grant.grant.scopes]
