"""The message after a policy was saved, with a button that restores the replaced policy."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponseNotAllowed
from django.http.response import HttpResponseBase
from django.middleware.csrf import get_token
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _t

from agents.admin.agents import AgentAdmin
from agents.models import Agent
from agents.tool_matrix.restore_policy import restore_policy
from bonobot.accounts.admin_base import ObjectRequest, redirect_back
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Action


def add_policy_saved_message(
    request: HttpRequest, owner: Agent | Organization, signed: str
) -> None:
    """Say that a policy or an agent's tools were saved.

    `signed` restores what was replaced; blank if nothing changed.
    """
    text = _t("Saved. Effective immediately.")
    if not signed:
        messages.success(request, text)
        return
    is_agent = isinstance(owner, Agent)
    button = format_html(
        '{} <form class="bb-inline-form" method="post" action="{}">'
        '<input type="hidden" name="csrfmiddlewaretoken" value="{}">'
        '<input type="hidden" name="replaced" value="{}">'
        '<button class="bb-link-button" type="submit">{}</button></form>',
        text,
        reverse("admin:agents_agent_restore_policy", args=[owner.pk])
        if is_agent
        else reverse("admin:organization_restore_policy"),
        get_token(request),
        signed,
        _t("Undo"),
    )
    messages.success(request, button)


@AgentAdmin.add_object_action("restore_policy", needs=Action.MANAGE_AGENTS)
def restore_agent_policy(visit: ObjectRequest) -> None:
    """Restore the policy that the last save replaced."""
    restore_policy(visit.principal, visit.object, visit.request.POST.get("replaced", ""))
    messages.success(visit.request, _t("The previous policy was restored."))


def restore_organization_policy(request: HttpRequest) -> HttpResponseBase:
    """Restore the organization's policy that the last save replaced."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    principal = resolve_principal(request)
    organization = Organization.objects.get(pk=principal.organization_id)
    restore_policy(principal, organization, request.POST.get("replaced", ""))
    messages.success(request, _t("The previous policy was restored."))
    return redirect_back(request, reverse("admin:organization_policy"))
