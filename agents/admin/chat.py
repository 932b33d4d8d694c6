"""The chat tab of an agent in the admin, and the form that sends a message."""

import json
from typing import Any

from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import READERS, AgentAdmin
from agents.admin.session_steps import load_latest_steps, load_session_facts
from agents.attachments import FIELD, MAX_ATTACHMENTS, MAX_TOTAL_BYTES, Attachment
from agents.calls.explain import find_no_tools_reason
from agents.calls.snapshots import get_snapshot_cache
from agents.models import Agent, Session
from agents.sessions import services as sessions
from agents.sessions.services import find_selectable_endpoint, list_selectable_endpoints
from bonobot.accounts.admin_base import ObjectRequest
from bonobot.accounts.roles import Action
from bonobot.core.problems import InvalidInput

RECENT_SESSIONS = 12


@AgentAdmin.add_page("change", _("Chat"), order=10, required_actions=READERS)
def show_chat(visit: ObjectRequest) -> HttpResponseBase:
    """Show the selected session, or the form to start one."""
    agent: Agent = visit.object
    visible_sessions = Session.objects.visible_to(visit.principal).filter(agent=agent)
    session_id = visit.request.GET.get("session")
    selected_session = (
        visible_sessions.get_or_404(agent.organization_id, pk=session_id) if session_id else None
    )
    if selected_session is not None:
        selected_session.agent = agent
    return visit.render_tab(
        "agents/chat.html",
        agent=agent,
        session=selected_session,
        session_steps=load_latest_steps(selected_session, visit.principal)
        if selected_session
        else None,
        facts=load_session_facts(selected_session) if selected_session else None,
        recent_sessions=visible_sessions.with_waits().order_by("-created_at")[:RECENT_SESSIONS],
        may_run=sessions.can_run_agent(visit.principal, agent),
        selectable_endpoints=[
            endpoint
            for endpoint in list_selectable_endpoints(visit.principal, agent)
            if endpoint.pk != agent.model_endpoint_id
        ],
        no_tools_reason=find_no_tools_reason(get_snapshot_cache().load_current("agent", agent.pk)),
    )


@AgentAdmin.add_object_action("start", required_actions=Action.RUN_AGENTS)
def start_session(visit: ObjectRequest) -> HttpResponseBase:
    """Start a session with a first message."""
    text = visit.request.POST.get("text", "")
    files = read_attachments(visit.request)
    name = visit.request.POST.get("model_endpoint", "")
    session = sessions.start_session(
        visit.principal,
        visit.object,
        text,
        attachments=files,
        model_endpoint=find_selectable_endpoint(visit.principal, visit.object, name),
        output_schema=read_output_schema(visit.request),
    )
    return HttpResponseRedirect(f"{visit.url()}?session={session.pk}")


def read_output_schema(request: HttpRequest) -> dict[str, Any] | None:
    """Return the output schema that was entered for a message; None for none."""
    text = request.POST.get("output_schema", "").strip()
    if not text:
        return None
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise InvalidInput(
            "The output schema isn't a JSON object.",
            field="output_schema",
            remedy="Enter a JSON Schema, or leave the field empty.",
        )
    return schema


def read_attachments(request: HttpRequest) -> list[Attachment]:
    """Return the uploaded files, at most one more (and one byte more) than is allowed."""
    files: list[Any] = request.FILES.getlist(FIELD)[: MAX_ATTACHMENTS + 1]
    return [Attachment(file.name or "", bytes(file.read(MAX_TOTAL_BYTES + 1))) for file in files]
