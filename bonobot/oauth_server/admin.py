"""Admin pages of authorized clients."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from bonobot.accounts.admin_base.responses import render_screen
from bonobot.accounts.current_organization import list_reachable_organizations, resolve_principal
from bonobot.accounts.role_labels import ROLE_CHOICES, SCOPE_MEANS
from bonobot.core.text.untrusted_text import make_visible
from bonobot.oauth_server import consents

SHOWN = 120
ROLES = dict(ROLE_CHOICES)


@require_http_methods(["GET", "POST"])
def show_own_grants(request: HttpRequest) -> HttpResponseBase:
    """Show the user's grants in all organizations, or revoke one."""
    user: Any = request.user
    if request.method == "POST":
        ended = consents.end_own(
            user, list_reachable_organizations(request), request.POST.get("grant", "")
        )
        told = _t("%(program)s is no longer let in.") % {
            "program": make_visible(ended.client, SHOWN)
        }
        messages.success(request, told)
        return HttpResponseRedirect(reverse("admin:let_in"))
    rows = consents.list_own_grants(user, list_reachable_organizations(request))
    return render_screen(
        request,
        "programs/own.html",
        title=_("Programs that you let in"),
        rows=[(one, ROLES[one.grant.role], _describe_scopes(one)) for one in rows],
    )


@require_http_methods(["GET", "POST"])
def show_organization_clients(request: HttpRequest) -> HttpResponseBase:
    """Show the clients authorized by members of the organization, or remove one."""
    principal = resolve_principal(request)
    if request.method == "POST":
        ended = consents.remove(principal, request.POST.get("program", ""))
        messages.success(request, _t("The program is removed; %(n)d grants ended.") % {"n": ended})
        return HttpResponseRedirect(reverse("admin:programs"))
    found = consents.list_authorized_clients(principal)
    return render_screen(request, "programs/list.html", title=_("Programs let in"), programs=found)


def _describe_scopes(one: consents.ClientGrant) -> list[tuple[str, Any]]:
    return [(scope, SCOPE_MEANS.get(scope, scope)) for scope in one.grant.scopes]
