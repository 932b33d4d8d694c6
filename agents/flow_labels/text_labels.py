"""Flow labels of texts that models read: instructions, skills, workflows, triggers and requests.

A token that writes such a text passes its labels on to the text. Sessions whose model reads it
start with them, and a token that reads it gets them. The text of a person has no labels, so a
person who rewrites a text clears them.

The same holds for the names and the configuration of other objects (`NAMED_KINDS`), except that
only a reviewer who clears a server's labels, or the deletion of the object, clears theirs. A person
who saves the organization's settings clears theirs, and one who replaces its policy clears those of
the policy. A token that is created by a token with labels starts with them.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import UUIDField

from agents.flow_labels.call_effects import build_flow_keys
from agents.flow_labels.services import list_current_labels
from agents.flow_labels.session_labels import (
    LabelOrigin,
    add_cell_labels,
    add_reader_labels,
    add_session_labels,
    label_reader,
)
from agents.models import (
    AccessRequest,
    Agent,
    AgentAssignment,
    AgentServer,
    Approval,
    ElicitationRequest,
    ModelEndpoint,
    Note,
    Recording,
    Replay,
    Session,
    SessionApproval,
    Skill,
    SkillVersion,
    Trigger,
    Workflow,
    WorkflowRun,
    WorkflowVersion,
)
from bonobot.accounts.models import Deletion, Invitation, Issuer, Organization, Provider, Token
from bonobot.accounts.principals import Principal
from bonobot.core.db.prepared_queries import PreparedQuery, QueryParameter
from bonobot.ledger.audit.admin_changes import AdminChange
from bonobot.ledger.audit.export import ExportedAuditLog
from bonobot.ledger.models import AuditRow, FlowCell
from bonobot.ledger.types import Actor
from bonobot.ledger.usage.report import UsageReport
from bonobot.notifications.models import Notification, NotificationChannel
from mcp_servers.flow_labels import FlowLabel, build_flow_key, decode_labels, encode_labels
from mcp_servers.flow_labels.store_labels import StoredData, get_store_labels
from mcp_servers.flow_labels.token_labels import HELD_LABELS, IDLE_S, load_token_labels
from mcp_servers.models import Definition, Preset, Server

FINISHED_STATUSES = (Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED)
TextRow = AccessRequest | Agent | Skill | Trigger | Workflow
# Rows with texts, and the fields with the IDs of the texts that have their labels: their own, and
# those of the objects that they name.
_OWN_ID = ("pk",)
_TEXT_ID_FIELDS: dict[type[Any], tuple[str, ...]] = {
    **dict.fromkeys((Agent, Skill), _OWN_ID),
    # Its reason of a rejection; its own text is in the configuration of a server with declared
    # operations.
    Definition: ("pk", "server_id"),
    **dict.fromkeys((Invitation, Issuer, Provider, Token), _OWN_ID),
    **dict.fromkeys((ModelEndpoint, NotificationChannel, Organization, Preset, Server), _OWN_ID),
    AccessRequest: ("pk", "agent_id"),
    Approval: ("pk", "agent_id", "server_id"),
    AuditRow: ("resource_id", "agent_id", "server_id"),
    Deletion: ("object_id",),
    ElicitationRequest: ("agent_id", "server_id"),
    Notification: ("channel_id", "subject_id"),
    Recording: ("pk", "agent_id"),
    Replay: ("recording_id",),
    Session: ("agent_id",),
    SkillVersion: ("skill_id",),
    Trigger: ("pk", "workflow_id"),
    Workflow: ("pk", "agent_id"),
    WorkflowRun: ("workflow_id",),
    WorkflowVersion: ("workflow_id",),
}
# Rows that have labels of their own.
LABELED_MODELS = tuple(model for model, fields in _TEXT_ID_FIELDS.items() if "pk" in fields)
# Types of objects, in the audit log, whose names, configuration, or messages have labels.
NAMED_KINDS = frozenset(
    {"agent", "mcp_preset", "mcp_server", "modelendpoint", "notice_channel", "organization"}
    | {"approval", "definition", "invitation", "issuer", "provider", "recording", "token"}
)
# Other changes, such as enabling an object, write no text; a halt, a rejection, and an answer have
# a reason, an attachment has patterns, and a replay has instructions.
_WRITING_ENDINGS = (
    *("_created", "_updated", "kill_switch_enabled", "server_attached"),
    *("call_approved", "call_denied", "definition_rejected", "member_invited"),
    "recording_replayed",
)
# Changes of an organization by which a person replaces all of a text.
_REWRITING_ACTIONS = frozenset({"organization_updated", "tool_policy_updated"})
# Rows with content of a session, which `session_id` names.
_SESSION_ROWS = (
    *(Approval, AuditRow, ElicitationRequest, Recording, SessionApproval, WorkflowRun),
)


def label_text(principal: Principal, row: TextRow, *, is_changed: bool = True) -> None:
    """Add the labels of the token that writes a text; a person's new text has none.

    Call it in the transaction of the change, before its audit entry is written.
    """
    key = build_flow_key(row.organization_id, "text", row.pk)
    if principal.kind != "token":
        if is_changed:
            FlowCell.objects.filter(pk=key).update(labels=0)
        return
    labels = _load_writer_labels(principal)
    if not labels:
        return
    add_cell_labels(row.organization_id, [key], labels)
    # Afterwards, as admissions lock the audit log before the cells of sessions.
    transaction.on_commit(partial(_label_reading_sessions, principal.actor, row, labels))


def label_changed_object(change: AdminChange) -> None:
    """Add the labels of the token that writes a name or a configuration, or creates a token.

    A person who rewrites the organization's settings or policy clears the labels of those.
    """
    if change.actor.kind != "token":
        if change.action in _REWRITING_ACTIONS:
            key = build_flow_key(change.organization_id, "text", _find_text_id(change))
            FlowCell.objects.filter(pk=key).update(labels=0)
        return
    if change.resource_type not in NAMED_KINDS:
        return
    if not change.action.endswith(_WRITING_ENDINGS):
        return
    labels = load_token_labels(change.organization_id, change.actor.id)
    if not labels:
        return
    key = build_flow_key(change.organization_id, "text", _find_text_id(change))
    add_cell_labels(change.organization_id, [key], labels)
    if change.resource_type == "token":
        key = build_flow_key(change.organization_id, "token", change.resource_id)
        add_cell_labels(change.organization_id, [key], labels, idle_s=IDLE_S)


def _find_text_id(change: AdminChange) -> str:
    """Return the ID of the changed text: an organization's policy is another than its settings."""
    is_policy = change.resource_type == "organization" and change.action.startswith("tool_policy")
    return _build_policy_id(change.resource_id) if is_policy else change.resource_id


def _build_policy_id(organization_id: UUID | str) -> str:
    return f"{organization_id}:policy"


def label_session_with_texts(actor: Actor, session: Session, *rows: TextRow | None) -> None:
    """Add the labels of what a session's model reads (3 queries).

    These are the texts of its agent, and of the agent's skills, workflows and callable agents, the
    names of its servers, and `rows`.
    """
    text_ids = _list_agent_text_ids(session.agent_id)
    text_ids |= {row.pk for row in rows if row is not None}
    add_session_labels(actor, session, _load_text_labels(session.organization_id, text_ids))


_AGENT = QueryParameter("agent", output_field=UUIDField())
_ASSIGNED_TEXTS = PreparedQuery(
    lambda: AgentAssignment.objects.filter(agent=_AGENT).values_list(
        "skill_id", "workflow_id", "callable_agent_id"
    )
)
_SERVERS = PreparedQuery(
    lambda: AgentServer.objects.filter(agent=_AGENT).order_by().values_list("server_id")
)


def _list_agent_text_ids(agent_id: UUID) -> set[UUID]:
    """Return the IDs of the texts that the model and the clients of an agent read (2 queries)."""
    assignments = _ASSIGNED_TEXTS.fetch(agent=agent_id)
    text_ids = {text_id for assignment in assignments for text_id in assignment if text_id}
    return text_ids | {agent_id, *(server_id for (server_id,) in _SERVERS.fetch(agent=agent_id))}


def label_endpoint_reader(principal: Principal, *, agent_id: UUID) -> None:
    """Add the labels of an agent's texts to the token that lists its tools (3 queries)."""
    if principal.kind != "token":
        return
    text_ids = list_endpoint_text_ids(agent_id=agent_id)
    label_list_reader(principal, "endpoint", text_ids)


def list_endpoint_text_ids(
    *, agent_id: UUID | None = None, server_id: UUID | None = None
) -> frozenset[UUID]:
    """Return the IDs of the names and texts of an endpoint (2 queries for an agent).

    Changes of them raise the policy generation.
    """
    if agent_id is not None:
        return frozenset(_list_agent_text_ids(agent_id))
    return frozenset({server_id} if server_id else ())


def label_row_reader(principal: Principal, method: str, rows: Sequence[Any]) -> None:
    """Add the labels of rows to the token that reads them (at most 4 queries).

    A response to a write shows a session to its writer, who already passed on its own labels.
    """
    if principal.kind != "token" or not rows:
        return
    sessions = [row for row in rows if isinstance(row, Session)] if method == "GET" else []
    session_ids = {*_iterate_session_ids(rows)}
    if session_ids:
        sessions += Session.objects.filter(pk__in=session_ids)
    if sessions:
        label_reader(principal, *sessions)
    is_creation = method == "POST"  # a note, whose labels its writer chose
    texts = [row for row in rows if not (is_creation and type(row) is Note)]
    if skill_ids := [row.pk for row in rows if isinstance(row, Skill)]:  # they name their agents
        texts += Agent.objects.filter(assignments__skill__in=skill_ids).only("pk")
    label_text_reader(principal, *texts, *sessions)
    _label_content_reader(principal, rows)


def _label_content_reader(principal: Principal, contents: Iterable[Any]) -> None:
    """Add the labels of what isn't rows: an exported audit log, usage, a server's error output."""
    for content in contents:
        if isinstance(content, UsageReport):
            label_list_reader(principal, "usage", _list_reported_ids(principal, content))
            continue
        if isinstance(content, ExportedAuditLog):
            prefixes = (
                build_flow_key(content.organization_id, "session", ""),
                build_flow_key(content.organization_id, "text", ""),
            )
            cells = [FlowCell.objects.filter(pk__startswith=prefix) for prefix in prefixes]
            labels = _load_labels(cells[0]) | _load_labels(cells[1])
            source = LabelOrigin("audit", "", "")
        elif isinstance(content, StoredData):
            labels = encode_labels(get_store_labels(content.server))
            source = LabelOrigin("mcp_server", str(content.server.pk), content.server.name)
        else:
            continue
        if labels:
            add_token_labels(principal, labels, source)


def _list_reported_ids(principal: Principal, report: UsageReport) -> set[UUID | str]:
    """Return the IDs of the objects whose names a report has (one query for models)."""
    text_ids: set[UUID | str] = {entry.id for entry in report.entries if entry.id}
    if report.query.by == "model":
        endpoints = ModelEndpoint.objects.for_organization(principal.organization_id)
        text_ids |= {*endpoints.values_list("pk", flat=True)}
    return text_ids


def label_skill_reader(principal: Principal, agent_id: UUID | None) -> None:
    """Add the labels of an agent's skills to the token that reads one (2 queries)."""
    if principal.kind == "token":
        label_text_reader(principal, *Skill.objects.filter(assignments__agent=agent_id))


def list_skill_labels(organization_id: UUID, skill_ids: Collection[UUID]) -> tuple[FlowLabel, ...]:
    """Return the labels of the texts of skills (one query)."""
    return decode_labels(_load_text_labels(organization_id, skill_ids) if skill_ids else 0)


def label_text_reader(principal: Principal, *rows: Any) -> None:
    """Add the labels of texts and notes to the token that reads them (one query)."""
    if principal.kind != "token":
        return
    text_ids = {*_iterate_text_ids(rows)}
    labels = _load_text_labels(principal.organization_id, text_ids) if text_ids else 0
    for row in rows:
        labels |= row.labels & HELD_LABELS if isinstance(row, Note) else 0
    if labels:
        source: Any = next(row for row in rows if isinstance(row, (Note, *_TEXT_ID_FIELDS)))
        name = LabelOrigin(source._meta.model_name, str(source.pk), str(source)[:255])
        add_token_labels(principal, labels, name)


def label_list_reader(principal: Principal, kind: str, text_ids: Collection[UUID | str]) -> None:
    """Add the labels of listed names and descriptions to the token that reads them (one query)."""
    if principal.kind != "token" or not text_ids:
        return
    if labels := _load_text_labels(principal.organization_id, text_ids):
        add_token_labels(principal, labels, LabelOrigin(kind, "", ""))


def add_token_labels(principal: Principal, labels: int, source: LabelOrigin) -> None:
    """Add labels of texts to a token that reads them, and to the agents that it is limited to."""
    add_reader_labels(principal, labels, [*_iterate_keys(principal)], source)


def _iterate_text_ids(rows: Iterable[Any]) -> Iterator[UUID | str]:
    for row in rows:
        for field in _TEXT_ID_FIELDS.get(type(row), ()):
            if text_id := getattr(row, field):
                yield text_id
        if isinstance(row, Organization):
            yield _build_policy_id(row.pk)


def _iterate_session_ids(rows: Iterable[Any]) -> Iterator[UUID]:
    for row in rows:
        if isinstance(row, _SESSION_ROWS) and row.session_id:
            yield row.session_id
        elif isinstance(row, Replay):
            yield row.recording.session_id


def _label_reading_sessions(actor: Actor, row: TextRow, labels: int) -> None:
    for session in _query_reading_sessions(row):
        add_session_labels(actor, session, labels)


def _query_reading_sessions(row: TextRow) -> Iterable[Session]:
    """Return the unfinished sessions whose model may already have read a text."""
    unfinished: Any = Session.objects.exclude(status__in=FINISHED_STATUSES)
    if isinstance(row, Agent):
        return unfinished.filter(agent=row)  # type: ignore[no-any-return]
    if isinstance(row, Skill | Workflow):
        agents = row.assignments.values("agent")
        return unfinished.filter(agent__in=agents)  # type: ignore[no-any-return]
    return ()


def _iterate_keys(principal: Principal) -> Iterator[str]:
    """Yield the keys of a token, and of the agents that it is limited to."""
    for agent_id in principal.agent_ids or (None,):
        yield from build_flow_keys(principal, agent_id=agent_id)


def _load_writer_labels(principal: Principal) -> int:
    labels = 0
    for agent_id in principal.agent_ids or (None,):
        current_labels = list_current_labels(principal, session_id=None, agent_id=agent_id)
        labels |= encode_labels(current_labels)
    return labels


def _load_text_labels(organization_id: UUID, text_ids: Iterable[UUID | str]) -> int:
    keys = [build_flow_key(organization_id, "text", text_id) for text_id in text_ids]
    return _load_labels(FlowCell.objects.filter(pk__in=keys))


def _load_labels(cells: Any) -> int:
    labels = 0
    for bits in cells.values_list("labels", flat=True).distinct():
        labels |= bits & HELD_LABELS
    return labels
