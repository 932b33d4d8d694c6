"""Bulk actions on agents, and what ends or is deleted with agents."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import ngettext

from agents.models import Agent, Approval, Budget, Note, Recording, Session, Workflow
from agents.services import AgentSpec, delete_agent, update_agent
from agents.sessions.child_sessions import FINISHED_STATUSES
from bonobot.accounts.admin_base import render_screen
from bonobot.accounts.admin_base.responses import change_each, delete_each
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.deletions import can_restore_later
from bonobot.core.i18n.localization import format_number
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.models import Server

# In one request: deleting an agent keeps what restores it, which takes some queries.
MAX_AGENTS = 100
MAX_NAMES_SHOWN = 10


def check_agent_count(agents: Sequence[Agent]) -> None:
    """Raise `InvalidInput` if there are too many agents for one request."""
    if len(agents) > MAX_AGENTS:
        raise InvalidInput(
            format_message("{n} agents are too many for one request.", n=len(agents)),
            field="_selected_action",
            remedy=format_message("Select up to {limit} agents.", limit=MAX_AGENTS),
        )


def confirm_disabling(
    admin: Any, request: HttpRequest, agents: Sequence[Agent]
) -> HttpResponseBase:
    """Render the page that confirms the action *Disable*."""
    return _render_confirmation(
        admin, request, agents, title=_t("Disable these agents?"), list_action="disable_chosen"
    )


def confirm_deletion(admin: Any, request: HttpRequest, agents: Sequence[Agent]) -> HttpResponseBase:
    """Render the page that confirms the action *Delete*."""
    private_servers = list(Server.objects.filter(scope_id__in=[agent.pk for agent in agents]))
    return _render_confirmation(
        admin,
        request,
        agents,
        title=_t("Delete these agents?"),
        list_action="remove_chosen",
        deleted=list_deleted_rows(agents, private_servers),
        restorable=all(
            can_restore_later(
                "agent", agent, *(row for row in private_servers if row.scope_id == agent.pk)
            )
            for agent in agents
        ),
    )


def _render_confirmation(
    admin: Any, request: HttpRequest, agents: Sequence[Agent], **context: Any
) -> HttpResponseBase:
    return render_screen(
        request,
        "agents/confirm_bulk_action.html",
        agents=agents,
        opts=admin.opts,
        stopped=describe_stopped_work(agents),
        **context,
    )


def set_agents_enabled(request: HttpRequest, agents: Sequence[Agent], *, enabled: bool) -> None:
    """Enable or disable each agent; disabling ends its sessions."""
    principal = resolve_principal(request)

    def set_enabled(agent: Agent) -> None:
        update_agent(principal, agent, AgentSpec(name=agent.name, enabled=enabled))

    if count := change_each(request, agents, set_enabled):
        text = (
            ngettext("%(n)s agent enabled.", "%(n)s agents enabled.", count)
            if enabled
            else ngettext("%(n)s agent disabled.", "%(n)s agents disabled.", count)
        )
        messages.success(request, text % {"n": format_number(count)})


def delete_agents(request: HttpRequest, agents: Sequence[Agent]) -> None:
    """Delete each agent, and offer to undo it for all that can be restored, at once."""

    def describe_count(count: int) -> str:
        text = ngettext("%(n)s agent was deleted.", "%(n)s agents were deleted.", count)
        return text % {"n": format_number(count)}

    delete_each(request, agents, partial(delete_agent, resolve_principal(request)), describe_count)


def describe_stopped_work(agents: Sequence[Agent]) -> list[str]:
    """Return sentences about what ends and stays canceled (two queries)."""
    approvals = Approval.objects.filter(agent__in=agents).pending().count()
    unfinished = Session.objects.filter(agent__in=agents).exclude(status__in=FINISHED_STATUSES)
    texts = (
        ngettext(
            "%(n)s pending approval is canceled.",
            "%(n)s pending approvals are canceled.",
            approvals,
        ),
        ngettext(
            "%(n)s unfinished session is canceled.",
            "%(n)s unfinished sessions are canceled.",
            sessions := unfinished.count(),
        ),
    )
    counts = zip(texts, (approvals, sessions), strict=True)
    return [text % {"n": format_number(count)} for text, count in counts if count]


def list_deleted_rows(
    agents: Sequence[Agent], private_servers: Sequence[Server]
) -> list[tuple[str, int, list[str]]]:
    """Return what is deleted with agents: title, count and, of what has names, the first ones."""
    rows: list[tuple[str, int, list[str]]] = []
    if private_servers:
        title = ngettext("private server", "private servers", len(private_servers))
        names = [make_visible(server.name, 120) for server in private_servers[:MAX_NAMES_SHOWN]]
        rows.append((title, len(private_servers), names))
    model: Any
    for model, has_names in (
        (Session, False),
        (Workflow, True),
        (Budget, True),
        (Note, False),
        (Recording, False),
    ):
        queryset = model.objects.filter(agent__in=agents)
        if count := queryset.count():
            options = model._meta
            title = str(options.verbose_name if count == 1 else options.verbose_name_plural)
            shown_rows = queryset[:MAX_NAMES_SHOWN] if has_names else ()
            rows.append((title, count, [make_visible(str(row), 120) for row in shown_rows]))
    return rows
