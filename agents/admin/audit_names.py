"""Names that the filters of the audit log suggest: agents, servers, tools, and members."""

from collections.abc import Callable, Iterable
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import path

from agents.builtin_tools.registry import BUILTIN_TOOLS
from agents.models import Agent
from bonobot.accounts.admin_base.responses import render_fragment
from bonobot.accounts.models import User
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.models import Definition, Server

MAX_SUGGESTED_NAMES = 1_000


def list_filter_names(principal: Principal) -> dict[str, list[str]]:
    """Return names that a person may see, by kind, sorted (four queries).

    Names with hidden characters are left out: a field would show another text than it has.
    """
    servers = Server.objects.for_organization(principal.organization_id)
    members = User.objects.filter(memberships__organization_id=principal.organization_id)
    if not principal.may(Action.VIEW):
        servers, members = servers.none(), members.none()
    tools = Definition.objects.tools().filter(server__in=servers, present=True)
    return {
        "agent": sort_names(_load_names(Agent.objects.visible_to(principal))),
        "server": sort_names(_load_names(servers)),
        "tool": sort_names([*_load_names(tools), *BUILTIN_TOOLS]),
        "person": sort_names(_load_names(members, "username")),
    }


def _load_names(rows: QuerySet[Any], field: str = "name") -> list[str]:
    names = rows.order_by(field).values_list(field, flat=True).distinct()
    return list(names[:MAX_SUGGESTED_NAMES])


def sort_names(names: Iterable[str]) -> list[str]:
    """Return distinct names in order, without those that have hidden characters."""
    visible = {name for name in names if make_visible(name) == name}
    return sorted(visible, key=lambda name: (name.lower(), name))


def build_name_urls(
    view: Callable[..., Any], get_principal: Callable[[HttpRequest], Principal]
) -> list[Any]:
    """Return the URL of the suggested names; `view` wraps views as the admin does."""

    def show_names(request: HttpRequest) -> HttpResponseBase:
        principal = get_principal(request)
        principal.require(Action.VIEW_AUDIT)
        return render_fragment(
            request, "audit/filter_names.html", names=list_filter_names(principal)
        )

    return [path("names/", view(show_names), name="ledger_auditrow_names")]
