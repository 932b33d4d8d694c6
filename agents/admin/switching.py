"""Kill switches in the admin: an agent's, a server's and the organization's, each told before."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t

from agents.admin.agents import AgentAdmin
from agents.halting import REASON_LENGTH, halt, reach_of, resume
from agents.registration import AgentSpec, alter_agent
from bonobot.tenancy.active import principal_of
from bonobot.tenancy.models import Organization
from bonobot.tenancy.roles import WHO_MAY, Action
from bonobot.tenancy.screens import Visit, screen
from mcp_servers import registration
from mcp_servers.admin.servers import ServerAdmin


@AgentAdmin.add_deed("switch", needs=Action.MANAGE_AGENTS)
def switch_agent(visit: Visit) -> HttpResponseBase | None:
    """Switch the agent on, or off: off ends its sessions, so it asks where there are some."""
    enabled = visit.request.POST.get("enabled") == "1"
    if not enabled and (asked := _ask_first(visit)):
        return asked
    alter_agent(visit.principal, visit.object, AgentSpec(name=visit.object.name, enabled=enabled))
    text = _t("%(agent)s is on.") if enabled else _t("%(agent)s is off.")
    messages.success(visit.request, text % {"agent": visit.object})
    return _whence(visit)


@ServerAdmin.add_deed("switch", needs=Action.MANAGE_SERVERS)
def switch_server(visit: Visit) -> HttpResponseBase | None:
    """Switch the server on, or off for everybody: it asks where sessions use it now."""
    enabled = visit.request.POST.get("enabled") == "1"
    if not enabled and (asked := _ask_first(visit)):
        return asked
    registration.switch(visit.principal, visit.object, enabled=enabled)
    text = _t("%(server)s is on.") if enabled else _t("%(server)s is off.")
    messages.success(visit.request, text % {"server": visit.object})
    return _whence(visit)


def _ask_first(visit: Visit) -> HttpResponseBase | None:
    """Return the question with what is affected; None where nothing is, or who asks is sure."""
    reach = reach_of(visit.object)
    if visit.request.POST.get("sure") or not reach.sessions:
        return None
    return screen(
        visit.request,
        "switch_off.html",
        title=_t("Switch %(name)s off?") % {"name": visit.object},
        object=visit.object,
        opts=visit.admin.opts,
        reach=reach,
        is_agent=visit.admin.__class__ is AgentAdmin,
        address=visit.url("switch"),
        kept=visit.url(),
    )


def _whence(visit: Visit) -> HttpResponseBase | None:
    """Return from the question to the object; without one, to where the switch is."""
    return HttpResponseRedirect(visit.url()) if visit.request.POST.get("sure") else None


def kill_switch(request: HttpRequest) -> HttpResponseBase:
    """Show what a halt of the organization would stop; halt it, or let it go on."""
    principal = principal_of(request)
    principal.require(Action.VIEW)
    if request.method == "POST":
        if request.POST.get("do") == "resume":
            resume(principal)
            messages.success(request, _t("It goes on. Sessions that were cancelled stay so."))
        else:
            halt(principal, request.POST.get("reason", ""))
            messages.success(request, _t("Everything is halted."))
        return HttpResponseRedirect(reverse("admin:organization_halt"))
    organization = Organization.objects.get(pk=principal.organization_id)
    return screen(
        request,
        "halt.html",
        title=_t("Kill switch"),
        reach=reach_of(organization),
        reason_length=REASON_LENGTH,
        who=WHO_MAY[Action.MANAGE_ORGANIZATION],
    )
