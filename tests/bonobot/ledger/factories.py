"""Entries that the ledger's tests make up."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID, uuid4

from django.db import connection

from bonobot.ledger.types import Actor, Opening

T = TypeVar("T")

ALICE = Actor("user", "1", "Alice")


def opening_of(organization_id: UUID, **facts: Any) -> Opening:
    """Return the opening of a call with made-up facts, some replaced."""
    usual: dict[str, Any] = {
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
    return Opening(**(usual | facts))


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Return what a function finds in the database, looked up beside the loop."""

    def look() -> T:
        try:
            return function(*arguments)
        finally:
            connection.close()

    return await asyncio.to_thread(look)
