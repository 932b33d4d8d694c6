"""Read and clear the flow labels that callers hold, and find the calls that added them.

A session holds labels until it ends; an agent and a token until they are idle for a day, or until
someone who manages agents clears them.
"""

import json
import time
from collections.abc import Collection, Iterable, Mapping
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
from bonobot.core.db.transactions import lock_row, lock_rows
from bonobot.ledger.admission import CallerFlowLabels, compute_held_labels
from bonobot.ledger.audit.admin_changes import describe_row, record_change, record_finished_change
from bonobot.ledger.models import AuditRow, FlowCell
from bonobot.ledger.types import FlowLabelEffect
from mcp_servers.flow_labels import FlowLabel, build_flow_key, decode_labels
from mcp_servers.flow_labels.store_labels import convert_microseconds, require_store_version
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
    """An agent's store (`workspace`, `notes`, `instructions`) and the labels that it may add.

    `written_at` is the last write of a caller with labels; `writes` changes with each of them.
    """

    name: str
    labels: tuple[FlowLabel, ...]
    written_at: datetime | None
    writes: tuple[Any, ...]


def list_agent_stores(agent: Agent) -> list[AgentStore]:
    """Return an agent's stores with their current labels (3 queries)."""
    workspace_labels = (
        Agent.objects.filter(pk=agent.pk).values_list("workspace_labels", flat=True).get()
    )
    labeled_notes = Note.objects.filter(agent=agent.pk).exclude(labels=0).order_by("pk")
    notes = [*labeled_notes.values_list("pk", "labels", "updated_at")]
    note_labels = 0
    for _, labels, _ in notes:
        note_labels |= labels
    workspace_key, text_key = _list_store_keys(agent)
    cells = FlowCell.objects.in_bulk([workspace_key, text_key])
    text_labels = cells[text_key].labels if text_key in cells else 0
    return [
        _build_store("workspace", workspace_labels, cells.get(workspace_key)),
        AgentStore(
            "notes",
            decode_labels(note_labels),
            max((updated_at for _, _, updated_at in notes), default=None),
            tuple((str(pk), labels, updated_at.isoformat()) for pk, labels, updated_at in notes),
        ),
        _build_store("instructions", text_labels, cells.get(text_key)),
    ]


def _build_store(name: str, labels: int, cell: FlowCell | None) -> AgentStore:
    # A workspace that got its labels before an upgrade has no cell.
    written_us = cell.touched if cell and labels else 0
    written_at = convert_microseconds(written_us) if written_us else None
    return AgentStore(name, decode_labels(labels), written_at, (written_us,))


def _list_store_keys(agent: Agent) -> tuple[str, str]:
    """Return the keys of an agent's workspace and texts."""
    organization_id = agent.organization_id
    workspace_key = build_flow_key(organization_id, "workspace", agent.pk)
    return workspace_key, build_flow_key(organization_id, "text", agent.pk)


def build_store_version_parts(stores: Iterable[AgentStore]) -> Mapping[str, Any]:
    """Return the parts of a version (see `object_version`) that all labeled writes change."""
    return {"stores": [[store.name, [*store.labels], [*store.writes]] for store in stores]}


def label_workspace(principal: Principal, agent_id: UUID, labels: int) -> None:
    """Add labels to an agent's workspace before a caller that holds them writes to it.

    The change of labels is governed, so the next call sees it. A write with the same labels only
    changes the time (4 queries).
    """
    with transaction.atomic():
        lock_row(Agent(pk=agent_id))  # a person may clear the labels meanwhile
        agent = Agent.objects.get(pk=agent_id)
        if missing := labels & ~agent.workspace_labels:
            with record_change(
                **describe_row("agent", agent),
                actor=principal.actor,
                action="workspace_labeled",
                details={"labels": list(decode_labels(missing))},
            ):
                Agent.objects.filter(pk=agent.pk).update(
                    workspace_labels=agent.workspace_labels | missing
                )
        workspace_key, _ = _list_store_keys(agent)
        cell = FlowCell(
            key=workspace_key,
            organization_id=agent.organization_id,
            touched=time.time_ns() // 1_000,
        )
        FlowCell.objects.bulk_create(
            [cell], update_conflicts=True, unique_fields=["key"], update_fields=["touched"]
        )


def clear_agent_stores(principal: Principal, agent: Agent, *, version: str | None = None) -> None:
    """Clear the labels of an agent's notes, workspace and texts, effective from the next call.

    Raises `Forbidden` without the right to approve definitions, `LabeledCaller`, and `Conflict`
    (`version_conflict`) if a caller with labels wrote to a store since `version`.
    """
    principal.require(Action.APPROVE_DEFINITIONS)
    require_no_held_labels(principal)
    details: dict[str, Any] = {}
    with transaction.atomic():
        # Labeled writes lock these rows, so all that are committed later keep their labels.
        lock_row(agent)
        lock_rows(Note.objects.filter(agent=agent.pk))
        lock_rows(FlowCell.objects.filter(pk__in=_list_store_keys(agent)))
        with record_change(
            **describe_row("agent", agent),
            actor=principal.actor,
            action="store_labels_cleared",
            details=details,
        ):
            stores = list_agent_stores(agent)
            require_store_version(build_store_version_parts(stores), version)
            details |= {store.name: [*store.labels] for store in stores}
            Agent.objects.filter(pk=agent.pk).update(workspace_labels=0)
            Note.objects.filter(agent=agent.pk).update(labels=0)
            FlowCell.objects.filter(pk__in=_list_store_keys(agent)).update(labels=0)
    agent.workspace_labels = 0
