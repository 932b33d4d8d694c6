"""Read and clear the flow labels that callers hold, and find the calls that added them.

A session holds labels until it ends; an agent and a token until they are idle for a day, or until
someone who manages agents clears them.
"""

import json
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction

from agents.flow_labels.call_effects import build_flow_keys
from agents.models import Agent, Approval, Note, Session
from bonobot.accounts.models import Token
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.ledger.admission import CallerFlowLabels, compute_held_labels
from bonobot.ledger.audit.admin_changes import describe_row, record_change, record_finished_change
from bonobot.ledger.models import AuditRow, FlowCell
from bonobot.ledger.types import FlowLabelEffect
from mcp_servers.flow_labels import FlowLabel, build_flow_key, decode_labels
from mcp_servers.flow_labels.store_labels import require_seen_labels
from mcp_servers.flow_labels.token_labels import HELD_LABELS, IDLE_S, require_no_held_labels

# Calls to search for the sources of a session's labels, and of an approval's.
MAX_SESSION_CALLS_READ = 2_000
MAX_APPROVAL_CALLS_READ = 200
MAX_CALLS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class LabelSource:
    """A label that a caller holds, with calls that added it, if they can still be found.

    For a session it is the first call, for an approval the latest ones before it.
    """

    label: FlowLabel
    calls: list[AuditRow] = field(default_factory=list)

    @property
    def call_id(self) -> UUID | None:
        return self.calls[0].pk if self.calls else None

    @property
    def tool(self) -> str:
        """The server's own name of its tool."""
        return self.calls[0].tool_name if self.calls else ""

    @property
    def at(self) -> datetime | None:
        """When the first call was made."""
        return self.calls[0].opened_at if self.calls else None


def list_approval_label_sources(approval: Approval) -> list[LabelSource]:
    """Return the labels the caller held when the approval was requested (at most one query)."""
    current_labels = [FlowLabel(name) for name in approval.flow_labels]
    return _collect_label_sources(
        _list_preceding_calls(approval)[:MAX_APPROVAL_CALLS_READ] if current_labels else (),
        current_labels,
        MAX_CALLS_SHOWN,
    )


def list_session_label_sources(
    session: Session, current_labels: Collection[FlowLabel]
) -> list[LabelSource]:
    """Return the sources of a session's labels (at most one query)."""
    rows = (
        _list_labeled_calls(session.organization_id).filter(session_id=session.pk).order_by("seq")
    )
    return _collect_label_sources(
        rows[:MAX_SESSION_CALLS_READ] if current_labels else (), current_labels, 1
    )


def _collect_label_sources(
    rows: Iterable[AuditRow], current_labels: Collection[FlowLabel], max_calls: int
) -> list[LabelSource]:
    sources = {label: LabelSource(label) for label in current_labels}
    for row in rows:
        labels = parse_labels(row)
        for label, source in sources.items():
            if label in labels and len(source.calls) < max_calls:
                source.calls.append(row)
        if all(len(source.calls) == max_calls for source in sources.values()):
            break
    return list(sources.values())


def _list_labeled_calls(organization_id: UUID) -> Any:
    """Return admitted calls with labels: tool calls and incoming webhooks."""
    rows = AuditRow.objects.for_organization(organization_id).filter(
        event_type__in=("call", "connection"), opened__contains='"labels":'
    )
    return rows.exclude(outcome=AuditRow.Outcome.REFUSED)


def _list_preceding_calls(approval: Approval) -> Any:
    """Return the caller's labeled calls before the approval request, latest first."""
    rows = _list_labeled_calls(approval.organization_id).filter(opened_at__lte=approval.created_at)
    if approval.session_id is not None:
        return rows.filter(session_id=approval.session_id)
    since = approval.created_at - timedelta(seconds=IDLE_S)
    calls = rows.filter(opened_at__gte=since, session_id=None)
    own_calls = calls.filter(
        actor_kind=approval.requested_by_kind, actor_id=approval.requested_by_id
    )
    return own_calls | calls.filter(agent_id=approval.agent_id) if approval.agent_id else own_calls


def parse_labels(row: AuditRow) -> set[str]:
    return set(json.loads(row.opened).get("details", {}).get("labels", ()))


def list_agent_labels(agent: Agent) -> tuple[FlowLabel, ...]:
    """Return the labels an agent and its tokens hold from calls without a session."""
    keys = [build_flow_key(agent.organization_id, "agent", agent.pk), *_list_token_keys(agent)]
    return _load_labels(keys, IDLE_S)


def list_token_labels(token: Token) -> tuple[FlowLabel, ...]:
    """Return the labels a token holds from calls without a session."""
    return _load_labels([build_flow_key(token.organization_id, "token", token.pk)], IDLE_S)


def list_session_labels(session: Session) -> list[LabelSource]:
    """Return a session's labels, each with the first call that added it."""
    current_labels = _load_labels(
        [build_flow_key(session.organization_id, "session", session.root_id or session.pk)], None
    )
    return list_session_label_sources(session, current_labels)


def list_current_labels(
    principal: Principal, *, session_id: UUID | None, agent_id: UUID | None
) -> tuple[FlowLabel, ...]:
    """Return the labels a caller holds now: its session, or its token and agent (one query)."""
    keys = build_flow_keys(principal, session_id=session_id, agent_id=agent_id)
    return _load_labels(keys, None if session_id else IDLE_S)


def clear_agent_labels(principal: Principal, agent: Agent) -> None:
    """Clear the labels of an agent and its own tokens; raises `Forbidden` and `LabeledCaller`."""
    keys = [build_flow_key(agent.organization_id, "agent", agent.pk), *_list_token_keys(agent)]
    _clear_labels(principal, keys, resource=("agent", agent.pk, agent.name))


def clear_token_labels(principal: Principal, token: Token) -> None:
    """Clear the labels of a token; raises `Forbidden` and `LabeledCaller`."""
    keys = [build_flow_key(token.organization_id, "token", token.pk)]
    _clear_labels(principal, keys, resource=("token", token.pk, token.name))


def _list_token_keys(agent: Agent) -> list[str]:
    """Return the keys of tokens restricted to agents that include this one."""
    restricted_tokens = Token.objects.for_organization(agent.organization_id).exclude(agent_ids=[])
    return [
        build_flow_key(agent.organization_id, "token", pk)
        for pk, agent_ids in restricted_tokens.values_list("pk", "agent_ids")
        if str(agent.pk) in agent_ids
    ]


def _load_labels(keys: Collection[str], idle_s: int | None) -> tuple[FlowLabel, ...]:
    now = time.time_ns() // 1_000
    held_bits = 0
    for cell in FlowCell.objects.filter(pk__in=keys):
        current_labels = CallerFlowLabels(cell.labels, cell.touched)
        held_bits |= compute_held_labels(
            current_labels, FlowLabelEffect(cell.key, 0, 0, idle_s), now
        )
    return decode_labels(held_bits & HELD_LABELS)


def _clear_labels(
    principal: Principal, keys: Iterable[str], *, resource: tuple[str, UUID, str]
) -> None:
    principal.require(Action.MANAGE_AGENTS)
    require_no_held_labels(principal)
    kind, pk, name = resource
    cells = FlowCell.objects.filter(pk__in=list(keys))
    with transaction.atomic():
        cleared_bits = 0
        for labels in cells.values_list("labels", flat=True):
            cleared_bits |= labels
        # Record first, then update the cells: admissions lock in this order.
        record_finished_change(
            organization_id=principal.organization_id,
            actor=principal.actor,
            action="flow_labels_cleared",
            resource_type=kind,
            resource_id=str(pk),
            resource_name=name,
            details={"labels": list(decode_labels(cleared_bits))},
            governed=False,
        )
        cells.update(labels=0)


@dataclass(frozen=True, slots=True)
class AgentStore:
    """An agent's store (`workspace`, `notes`, `instructions`) and the labels that it may add."""

    name: str
    labels: tuple[FlowLabel, ...]


def list_agent_stores(agent: Agent) -> list[AgentStore]:
    """Return an agent's stores with their current labels (3 queries)."""
    workspace_labels = (
        Agent.objects.filter(pk=agent.pk).values_list("workspace_labels", flat=True).get()
    )
    note_labels = 0
    for labels in Note.objects.filter(agent=agent.pk).values_list("labels", flat=True):
        note_labels |= labels
    text_labels, text_key = 0, build_flow_key(agent.organization_id, "text", agent.pk)
    for labels in FlowCell.objects.filter(pk=text_key).values_list("labels", flat=True):
        text_labels |= labels
    return [
        AgentStore("workspace", decode_labels(workspace_labels)),
        AgentStore("notes", decode_labels(note_labels)),
        AgentStore("instructions", decode_labels(text_labels)),
    ]


def clear_agent_stores(
    principal: Principal, agent: Agent, *, seen_labels: Collection[str] | None = None
) -> None:
    """Clear the labels of an agent's notes, workspace and texts, effective from the next call.

    Raises `Forbidden` without the right to approve definitions, `LabeledCaller`, and `Conflict`
    (`version_conflict`) if a store has other labels than `seen_labels`.
    """
    principal.require(Action.APPROVE_DEFINITIONS)
    require_no_held_labels(principal)
    details: dict[str, Any] = {}
    with record_change(
        **describe_row("agent", agent),
        actor=principal.actor,
        action="store_labels_cleared",
        details=details,
    ):
        stores = list_agent_stores(agent)
        require_seen_labels({label for store in stores for label in store.labels}, seen_labels)
        details |= {store.name: [*store.labels] for store in stores}
        Agent.objects.filter(pk=agent.pk).update(workspace_labels=0)
        Note.objects.filter(agent=agent.pk).update(labels=0)
        FlowCell.objects.filter(pk=build_flow_key(agent.organization_id, "text", agent.pk)).update(
            labels=0
        )
    agent.workspace_labels = 0
