"""Kill switches of agents, servers and the organization."""

import json
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t

from agents.admin.agents import AgentAdmin
from agents.kill_switch import (
    MAX_REASON_LENGTH,
    halt_organization,
    load_impact,
    resume_organization,
)
from agents.services import AgentSpec, update_agent
from bonobot.accounts.admin_base import ObjectRequest, render_fragment, render_screen
from bonobot.accounts.admin_base.responses import FRAGMENT_HEADER
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import ALLOWED_ROLES, Action
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.models import AuditRow
from mcp_servers import services
from mcp_servers.admin.servers import ServerAdmin


@AgentAdmin.add_object_action("toggle", required_actions=Action.MANAGE_AGENTS)
def set_agent_enabled(visit: ObjectRequest) -> HttpResponseBase | None:
    """Enable or disable the agent; disabling ends its sessions, so it asks for confirmation."""
    enabled = visit.request.POST.get("enabled") == "1"
    if not enabled and (confirmation := _render_confirmation(visit)):
        return confirmation
    update_agent(visit.principal, visit.object, AgentSpec(name=visit.object.name, enabled=enabled))
    text = _t("%(agent)s is enabled.") if enabled else _t("%(agent)s is disabled.")
    messages.success(visit.request, text % {"agent": visit.object})
    return _redirect_back(visit)


@ServerAdmin.add_object_action("toggle", required_actions=Action.MANAGE_SERVERS)
def set_server_enabled(visit: ObjectRequest) -> HttpResponseBase | None:
    """Enable or disable the server for all; asks for confirmation if sessions use it."""
    enabled = visit.request.POST.get("enabled") == "1"
    if not enabled and (confirmation := _render_confirmation(visit)):
        return confirmation
    services.set_server_enabled(visit.principal, visit.object, enabled=enabled)
    text = _t("%(server)s is enabled.") if enabled else _t("%(server)s is disabled.")
    messages.success(visit.request, text % {"server": visit.object})
    return _redirect_back(visit)


def _render_confirmation(visit: ObjectRequest) -> HttpResponseBase | None:
    """Return the confirmation page; None if no session is affected or it was confirmed."""
    impact = load_impact(visit.object)
    if visit.request.POST.get("sure") or not impact.sessions:
        return None
    return render_screen(
        visit.request,
        "kill_switch/confirm.html",
        title=_t("Disable %(name)s?") % {"name": visit.object},
        object=visit.object,
        opts=visit.admin.opts,
        impact=impact,
        is_agent=visit.admin.__class__ is AgentAdmin,
        address=visit.url("toggle"),
        cancel_url=visit.url(),
    )


def _redirect_back(visit: ObjectRequest) -> HttpResponseBase | None:
    """Redirect from the confirmation to the object; None if there was no confirmation."""
    return HttpResponseRedirect(visit.url()) if visit.request.POST.get("sure") else None


def show_kill_switch(request: HttpRequest) -> HttpResponseBase:
    """Show the state of the organization's kill switch; after a confirmation, change it."""
    principal = resolve_principal(request)
    principal.require(Action.VIEW)
    organization = Organization.objects.get(pk=principal.organization_id)
    if request.method == "POST":
        principal.require(Action.MANAGE_ORGANIZATION)
        if not request.POST.get("sure"):
            return _confirm_kill_switch(request, organization)
        if request.POST.get("do") == "resume":
            resume_organization(principal)
            messages.success(
                request, _t("The kill switch is disabled. Canceled sessions stay canceled.")
            )
        else:
            halt_organization(principal, request.POST.get("reason", ""))
            messages.success(request, _t("The kill switch is enabled."))
        return HttpResponseRedirect(reverse("admin:organization_kill_switch"))
    entry = _find_entry(organization) if organization.halted_at else None
    return render_screen(
        request,
        "kill_switch/page.html",
        title=_t("Kill switch"),
        impact=load_impact(organization),
        entry=entry,
        reason=json.loads(entry.opened)["details"].get("reason", "") if entry else "",
        allowed_roles=ALLOWED_ROLES[Action.MANAGE_ORGANIZATION],
    )


def _confirm_kill_switch(request: HttpRequest, organization: Organization) -> HttpResponseBase:
    """Ask before it is enabled or disabled: in a dialog, or without a script on a page."""
    is_enabling = request.POST.get("do") != "resume"
    title = (
        _t("Enable kill switch for %(name)s?")
        if is_enabling
        else _t("Disable kill switch for %(name)s?")
    )
    context: dict[str, Any] = {
        "title": title % {"name": make_visible(organization.name, 80)},
        "is_enabling": is_enabling,
        "impact": load_impact(organization),
        "reason_length": MAX_REASON_LENGTH,
    }
    if FRAGMENT_HEADER in request.headers:
        return render_fragment(request, "kill_switch/confirm_form.html", **context)
    return render_screen(request, "kill_switch/confirm_organization.html", **context)


def _find_entry(organization: Organization) -> AuditRow | None:
    """Return the entry that says who enabled the kill switch, and why."""
    rows = AuditRow.objects.for_organization(organization.pk).filter(action="kill_switch_enabled")
    return rows.order_by("-opened_at").first()
