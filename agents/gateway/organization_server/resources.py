"""Agents, sessions and workflows as MCP resources.

`bonobot://agents/{id}` is the REST representation of an agent with its session counts by status,
`bonobot://workflows/{id}` that of a workflow with its run counts; a session has its steps. Names
work in place of ids. `skill://{name}/SKILL.md` is a skill of the organization.
"""

import json
import re
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, Q, QuerySet

from agents.api.agents import AgentDetailView
from agents.api.sessions import SessionDetailView
from agents.api.workflows import WorkflowDetailView
from agents.flow_labels.text_labels import label_text_reader
from agents.gateway.catalog import Declaration
from agents.gateway.organization_server.app_pages import read_page
from agents.gateway.organization_server.management_tools import OperationRequest, perform_operation
from agents.models import Agent, Session, Skill, Workflow, WorkflowRun
from agents.models.agents import build_agent_lookup
from agents.skills import build_template, find_skill_name, read_skill_file
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action

KINDS = ("agents", "sessions", "workflows")
JSON_MEDIA_TYPE = "application/json"
_URI = re.compile(r"bonobot://(agents|sessions|workflows)/([A-Za-z0-9_-]{1,64})")
_VIEWS: dict[str, tuple[Any, str]] = {
    "agents": (AgentDetailView, "agent_id"),
    "sessions": (SessionDetailView, "session_id"),
    "workflows": (WorkflowDetailView, "workflow_id"),
}
_TEMPLATES = {
    "agents": ("Agent", "An agent, by ID or slug, with its number of sessions by status."),
    "sessions": ("Session", "A session, by ID, with its steps: messages, model turns, calls."),
    "workflows": ("Workflow", "A workflow, by ID or name, with its number of runs by status."),
}


def build_uri(kind: str, identifier: object) -> str:
    """Return the URI of an agent, a session or a workflow."""
    return f"bonobot://{kind}/{identifier}"


def list_resources(principal: Principal) -> tuple[Declaration, ...]:
    """Return the agents and workflows that are visible to a principal (2 queries)."""
    if not _can_view(principal):
        return ()
    agents = Agent.objects.visible_to(principal).order_by("slug")
    workflows = Workflow.objects.visible_to(principal).order_by("name")
    label_text_reader(principal, *agents, *workflows)
    return (
        *(_build_declaration("agents", row, row.slug, row.name) for row in agents),
        *(_build_declaration("workflows", row, row.name, row.name) for row in workflows),
    )


def list_resource_templates(principal: Principal) -> tuple[Declaration, ...]:
    """Return the URI templates of agents, sessions and workflows."""
    if not _can_view(principal):
        return ()
    return tuple(
        {
            "uriTemplate": build_uri(kind, "{id}"),
            "name": kind,
            "title": title,
            "description": description,
            "mimeType": JSON_MEDIA_TYPE,
        }
        for kind, (title, description) in _TEMPLATES.items()
    )


def read_resource_contents(principal: Principal, address: str) -> dict[str, Any] | None:
    """Return a resource's current contents, None for an unknown URI; raises `Problem`."""
    if (page := read_page(address)) is not None:
        return page
    match = _URI.fullmatch(address)
    if match is None:
        skills = Skill.objects.usable_by(principal).filter(name=find_skill_name(address))
        label_text_reader(principal, *skills)
        return read_skill_file(map(build_template, skills), address)
    kind, name = match.groups()
    view, parameter = _VIEWS[kind]
    details = perform_operation(
        principal,
        OperationRequest(view=view, method="GET", path_parameters={parameter: name}, query={}),
    )
    if kind != "sessions":
        details |= {
            _get_counted_noun(kind): _count_by_status(principal, kind, [UUID(details["id"])])[
                UUID(details["id"])
            ]
        }
    text = json.dumps(details, ensure_ascii=False)
    return {"contents": [{"uri": address, "mimeType": JSON_MEDIA_TYPE, "text": text}]}


def load_resource_states(principal: Principal, uris: Collection[str]) -> dict[str, str]:
    """Return a state string for each visible resource, which changes when the resource does.

    At most five queries; missing and invisible resources are omitted.
    """
    uris_by_name: dict[str, dict[str, set[str]]] = {kind: {} for kind in KINDS}
    for uri in uris if _can_view(principal) else ():
        if match := _URI.fullmatch(uri):
            uris_by_name[match[1]].setdefault(match[2], set()).add(uri)
    states: dict[str, str] = {}
    for kind, names in uris_by_name.items():
        if names:
            for row_id, name, state in _load_states(principal, kind, names):
                for key in {str(row_id), name} & names.keys():
                    states |= dict.fromkeys(names[key], state)
    return states


def _load_states(
    principal: Principal, kind: str, names: Collection[str]
) -> Iterable[tuple[UUID, str, str]]:
    """Yield id, name and state of the visible rows (2 queries; 1 for sessions)."""
    if kind == "sessions":
        ids = [lookup["pk"] for lookup in map(build_agent_lookup, names) if "pk" in lookup]
        sessions = Session.objects.visible_to(principal).filter(pk__in=ids)
        for session in sessions.only("pk", "status", "updated_at"):
            yield session.pk, "", f"{session.status} {_format_time(session.updated_at)}"
        return
    rows = list(_query_visible_rows(principal, kind).filter(_build_name_filter(kind, names)))
    counts = _count_by_status(principal, kind, [row.pk for row in rows])
    for row in rows:
        state = f"{_format_time(row.updated_at)} {json.dumps(counts[row.pk])}"
        yield row.pk, row.slug if kind == "agents" else row.name, state


def _query_visible_rows(principal: Principal, kind: str) -> "QuerySet[Any]":
    rows: QuerySet[Any] = (Agent if kind == "agents" else Workflow).objects.visible_to(principal)
    return rows


def _build_name_filter(kind: str, names: Collection[str]) -> Q:
    lookups = [build_agent_lookup(name) for name in names]
    ids = [lookup["pk"] for lookup in lookups if "pk" in lookup]
    other_names = [lookup["slug"] for lookup in lookups if "slug" in lookup]
    return Q(pk__in=ids) | Q(**{"slug__in" if kind == "agents" else "name__in": other_names})


def _count_by_status(
    principal: Principal, kind: str, ids: list[UUID]
) -> dict[UUID, dict[str, int]]:
    """Count the sessions of agents, or the runs of workflows, by status (one query)."""
    if kind == "agents":
        rows: Any = Session.objects.visible_to(principal).filter(agent__in=ids)
        owner, status = "agent_id", "status"
    else:
        rows = WorkflowRun.objects.visible_to(principal).filter(workflow__in=ids)
        owner, status = "workflow_id", "session__status"
    counts: dict[UUID, dict[str, int]] = {row_id: {} for row_id in ids}
    for row in rows.order_by(owner, status).values(owner, status).annotate(many=Count("pk")):
        counts[row[owner]][row[status]] = row["many"]
    return counts


def _get_counted_noun(kind: str) -> str:
    return "sessions" if kind == "agents" else "runs"


def _build_declaration(kind: str, row: Any, name: str, title: str) -> Declaration:
    return {
        "uri": build_uri(kind, row.pk),
        "name": name,
        "title": title,
        "description": row.description,
        "mimeType": JSON_MEDIA_TYPE,
    }


def _can_view(principal: Principal) -> bool:
    return principal.may(Action.VIEW) or principal.may(Action.RUN_AGENTS)


def _format_time(value: datetime) -> str:
    return value.isoformat()
