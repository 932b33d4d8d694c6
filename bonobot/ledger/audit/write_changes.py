"""Write the audit entries of administrative changes in the caller's transaction."""

from collections.abc import Sequence, Set
from datetime import datetime
from uuid import UUID

from django.db import transaction

from bonobot.ledger.audit.admin_changes import AdminChange
from bonobot.ledger.audit.hash_chain import ChainTip
from bonobot.ledger.types import Opening
from bonobot.ledger.writer import sql
from bonobot.ledger.writer.batch_plan import OpenItem, SealedItem, build_open_item
from bonobot.ledger.writer.sql import LedgerDatabase


def write_next_generation(organization_id: UUID) -> None:
    """Increment an organization's policy generation."""
    sql.increment_generation(LedgerDatabase(transaction.get_connection()), organization_id)


def write_changes(
    changes: Sequence[tuple[AdminChange, datetime]], raised_generations: Set[UUID]
) -> None:
    """Chain and insert the entries of changes, and increment these policy generations."""
    database = LedgerDatabase(transaction.get_connection())
    organizations = {change.organization_id for change, _ in changes} | raised_generations
    tips = sql.lock_heads(database, organizations)
    for organization_id in raised_generations:
        tip = tips[organization_id]
        tips[organization_id] = ChainTip(tip.seq, tip.digest, tip.generation + 1)
    sealed_items: list[SealedItem] = []
    for change, at in changes:
        tip = tips[change.organization_id]
        item = _build_item(change, at, tip.generation)
        tip = tips[change.organization_id] = tip.extend(item.text)
        sealed_items.append(SealedItem(item, tip.seq, tip.digest))
    if sealed_items:
        sql.write_opened(database, sealed_items)
    sql.write_heads(database, tips)


def _build_item(change: AdminChange, at: datetime, generation: int) -> OpenItem:
    event = change.event
    opening = Opening(
        call_id=change.id,
        organization_id=change.organization_id,
        action=change.action,
        event_type=event.type,
        resource_type=change.resource_type,
        resource_id=change.resource_id,
        resource_name=change.resource_name,
        actor=change.actor,
        decision=event.decision,
        rule=event.rule,
        code=event.code,
        details=change.details,
        agent_id=event.agent_id,
        agent_name=event.agent_name,
        server_id=event.server_id,
        server_name=event.server_name,
        tool_name=event.tool_name,
        session_id=event.session_id,
        parent_id=event.parent_id,
    )
    return build_open_item(opening, at, outcome=event.outcome, generation=generation)
