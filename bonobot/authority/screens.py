"""Pages of the admin: what a person lets programs do, and the programs of an organization."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from bonobot.authority import let_in
from bonobot.lib.untrusted import visible
from bonobot.tenancy.active import principal_of
from bonobot.tenancy.models import ROLE_CHOICES
from bonobot.tenancy.roles_page import SCOPE_MEANS
from bonobot.tenancy.screens.answers import screen
from bonobot.tenancy.sign_on import organizations_of

SHOWN = 120
ROLES = dict(ROLE_CHOICES)


@require_http_methods(["GET", "POST"])
def own(request: HttpRequest) -> HttpResponseBase:
    """Show what the person lets programs do, everywhere, and end one."""
    user: Any = request.user
    if request.method == "POST":
        ended = let_in.end_own(user, organizations_of(request), request.POST.get("grant", ""))
        told = _t("%(program)s is no longer let in.") % {"program": visible(ended.client, SHOWN)}
        messages.success(request, told)
        return HttpResponseRedirect(reverse("admin:let_in"))
    rows = let_in.let_in_by(user, organizations_of(request))
    return screen(
        request,
        "programs/own.html",
        title=_("Programs that you let in"),
        rows=[(one, ROLES[one.grant.role], _means(one)) for one in rows],
    )


@require_http_methods(["GET", "POST"])
def of_organization(request: HttpRequest) -> HttpResponseBase:
    """Show the programs that people of the organization let in, and remove one."""
    principal = principal_of(request)
    if request.method == "POST":
        ended = let_in.remove(principal, request.POST.get("program", ""))
        messages.success(request, _t("The program is removed; %(n)d grants ended.") % {"n": ended})
        return HttpResponseRedirect(reverse("admin:programs"))
    found = let_in.programs(principal)
    return screen(request, "programs/list.html", title=_("Programs let in"), programs=found)


def _means(one: let_in.LetIn) -> list[tuple[str, Any]]:
    return [(scope, SCOPE_MEANS.get(scope, scope)) for scope in one.grant.scopes]
