"""Agents, sessions and workflows as MCP resources.

`bonobot://agents/{id}` is the REST representation of an agent with its session counts by status,
`bonobot://workflows/{id}` that of a workflow with its run counts; a session has its steps. Names
work in place of ids. `skill://{name}/SKILL.md` is a skill of the organization.
"""

import json
import re
from collections.abc import Collection, Iterable
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
from bonobot.accounts.api.resource_view import ResourceView
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action

KINDS = ("agents", "sessions", "workflows")
_JSON_MEDIA_TYPE = "application/json"
_URI = re.compile(rf"bonobot://({'|'.join(KINDS)})/([A-Za-z0-9_-]{{1,64}})")
# The view of a kind, and its path parameter.
_VIEWS: dict[str, tuple[type[ResourceView], str]] = {
    "agents": (AgentDetailView, "agent_id"),
    "sessions": (SessionDetailView, "session_id"),
    "workflows": (WorkflowDetailView, "workflow_id"),
}
# The model of a kind that has names, and the field of the name.
_NAMED_MODELS: dict[str, tuple[type[Agent] | type[Workflow], str]] = {
    "agents": (Agent, "slug"),
    "workflows": (Workflow, "name"),
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
    # The principal reads their names and descriptions.
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
            "mimeType": _JSON_MEDIA_TYPE,
        }
        for kind, (title, description) in _TEMPLATES.items()
    )


def read_resource_contents(principal: Principal, uri: str) -> dict[str, Any] | None:
    """Return a resource's current contents, None for an unknown URI; raises `Problem`."""
    if (page := read_page(uri)) is not None:
        return page
    match = _URI.fullmatch(uri)
    if match is None:
        return _read_skill(principal, uri)
    kind, name = match.groups()
    text = json.dumps(_read_details(principal, kind, name), ensure_ascii=False)
    return {"contents": [{"uri": uri, "mimeType": _JSON_MEDIA_TYPE, "text": text}]}


def load_resource_states(principal: Principal, uris: Collection[str]) -> dict[str, str]:
    """Return a state string for each visible resource, which changes when the resource does.

    At most five queries; missing and invisible resources are omitted.
    """
    if not _can_view(principal):
        return {}
    uris_by_kind: dict[str, dict[str, set[str]]] = {}
    for uri in uris:
        if match := _URI.fullmatch(uri):
            kind, name = match.groups()
            uris_by_kind.setdefault(kind, {}).setdefault(name, set()).add(uri)
    states: dict[str, str] = {}
    for kind, uris_by_name in uris_by_kind.items():
        for row_id, row_name, state in _load_states(principal, kind, uris_by_name):
            for name in {str(row_id), row_name} & uris_by_name.keys():
                states |= dict.fromkeys(uris_by_name[name], state)
    return states


def _read_skill(principal: Principal, uri: str) -> dict[str, Any] | None:
    """Return the file of a skill, None if no usable skill has this URI."""
    skills = Skill.objects.usable_by(principal).filter(name=find_skill_name(uri))
    label_text_reader(principal, *skills)
    return read_skill_file(map(build_template, skills), uri)


def _read_details(principal: Principal, kind: str, name: str) -> dict[str, Any]:
    """Return the REST representation of an object, with counts by status; raises `Problem`."""
    view, parameter = _VIEWS[kind]
    details: dict[str, Any] = perform_operation(
        principal,
        OperationRequest(view=view, method="GET", path_parameters={parameter: name}, query={}),
    )
    if kind != "sessions":
        row_id = UUID(details["id"])
        counted_noun = "sessions" if kind == "agents" else "runs"
        details[counted_noun] = _count_by_status(principal, kind, [row_id])[row_id]
    return details


def _load_states(
    principal: Principal, kind: str, names: Collection[str]
) -> Iterable[tuple[UUID, str, str]]:
    """Yield id, name and state of the visible rows (2 queries; 1 for sessions)."""
    if kind == "sessions":
        ids = [lookup["pk"] for lookup in map(build_agent_lookup, names) if "pk" in lookup]
        sessions = Session.objects.visible_to(principal).filter(pk__in=ids)
        for session in sessions.only("pk", "status", "updated_at"):
            yield session.pk, "", f"{session.status} {session.updated_at.isoformat()}"
        return
    model, name_field = _NAMED_MODELS[kind]
    visible_rows = model.objects.visible_to(principal)
    rows = list(visible_rows.filter(_build_name_filter(name_field, names)))
    counts = _count_by_status(principal, kind, [row.pk for row in rows])
    for row in rows:
        state = f"{row.updated_at.isoformat()} {json.dumps(counts[row.pk])}"
        yield row.pk, getattr(row, name_field), state


def _build_name_filter(name_field: str, names: Collection[str]) -> Q:
    """Return a filter for rows with one of these IDs or names."""
    lookups = [build_agent_lookup(name) for name in names]
    ids = [lookup["pk"] for lookup in lookups if "pk" in lookup]
    other_names = [lookup["slug"] for lookup in lookups if "slug" in lookup]
    return Q(pk__in=ids) | Q(**{f"{name_field}__in": other_names})


def _count_by_status(
    principal: Principal, kind: str, ids: list[UUID]
) -> dict[UUID, dict[str, int]]:
    """Count the sessions of agents, or the runs of workflows, by status (one query)."""
    rows: QuerySet[Any]
    if kind == "agents":
        rows = Session.objects.visible_to(principal).filter(agent__in=ids)
        owner_field, status_field = "agent_id", "status"
    else:
        rows = WorkflowRun.objects.visible_to(principal).filter(workflow__in=ids)
        owner_field, status_field = "workflow_id", "session__status"
    counts: dict[UUID, dict[str, int]] = {row_id: {} for row_id in ids}
    groups = rows.order_by(owner_field, status_field).values_list(owner_field, status_field)
    for owner_id, status, count in groups.annotate(n=Count("pk")):
        counts[owner_id][status] = count
    return counts


def _build_declaration(kind: str, row: Agent | Workflow, name: str, title: str) -> Declaration:
    return {
        "uri": build_uri(kind, row.pk),
        "name": name,
        "title": title,
        "description": row.description,
        "mimeType": _JSON_MEDIA_TYPE,
    }


def _can_view(principal: Principal) -> bool:
    return principal.may(Action.VIEW) or principal.may(Action.RUN_AGENTS)
