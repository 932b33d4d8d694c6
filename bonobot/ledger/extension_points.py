"""What upper packages register for the ledger: calls that usage counts before they run."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from bonobot.core.extension_points import ExtensionPoint


@dataclass(frozen=True, slots=True)
class PendingCalls:
    """A number of pending calls with the same values; `begins` is their minute in UTC."""

    count: int
    begins: datetime
    organization_id: UUID
    agent_id: UUID | None
    agent_name: str
    server_id: UUID | None
    server_name: str
    tool_name: str


class PendingCallSource(Protocol):
    """Loads pending calls of an organization (None: of all) requested within a time."""

    def __call__(
        self,
        organization_id: UUID | None,
        since: datetime,
        until: datetime | None,
        filters: Mapping[str, Any],
    ) -> list[PendingCalls]: ...


pending_call_source: ExtensionPoint[PendingCallSource] = ExtensionPoint(
    "source of pending calls", registered_by="agents"
)
