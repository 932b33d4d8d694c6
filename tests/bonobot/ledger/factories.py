"""Entries for the tests of the ledger."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID, uuid4

from django.db import connection

from bonobot.ledger.budget_balances import load_balances
from bonobot.ledger.budgets import BudgetBalance
from bonobot.ledger.models import BudgetCell
from bonobot.ledger.types import Actor, Admission, Opening, Settlement
from bonobot.ledger.writer.writer_thread import LedgerWriter

T = TypeVar("T")

ALICE = Actor("user", "1", "Alice")


def opening_of(organization_id: UUID, **overrides: Any) -> Opening:
    """Build the opening of a call from defaults and overrides."""
    defaults: dict[str, Any] = {
        "call_id": uuid4(),
        "organization_id": organization_id,
        "action": "agent_tool_call",
        "event_type": "call",
        "resource_type": "mcp_tool",
        "resource_id": "mcp_time_now",
        "actor": ALICE,
        "decision": "allow",
        "tool_name": "now",
        "details": {"arguments": {"zone": "Asia/Tokyo"}},
    }
    return Opening(**(defaults | overrides))


def record_call(writer: LedgerWriter, opening: Opening) -> None:
    """Open and close the entry of a call."""
    settlement = Settlement(
        call_id=opening.call_id,
        organization_id=opening.organization_id,
        outcome="ok",
        duration_ms=1,
    )
    writer.admit_call(Admission(opening)).result(30)
    assert writer.settle_call(settlement).result(30)


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Call a function that uses the database in a thread."""

    def call() -> T:
        try:
            return function(*arguments)
        finally:
            connection.close()

    return await asyncio.to_thread(call)


def load_balance(key: str) -> tuple[int, int]:
    """Return what is spent and reserved of a budget."""
    balance = load_balances([key])[key]
    return balance.spent, balance.reserved


def load_organization_balances(organization_id: UUID) -> dict[str, BudgetBalance]:
    """Return the balances of all cells of an organization by key."""
    cells = BudgetCell.objects.filter(organization_id=organization_id).order_by("key")
    return {
        key: BudgetBalance(spent, reserved)
        for key, spent, reserved in cells.values_list("key", "spent", "reserved")
    }
