"""Number of definitions of servers by kind: declared, pending review, and with an error."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import Count, Q

from mcp_servers.models import Definition, Server
from mcp_servers.models.definitions import AWAITING_REVIEW


@dataclass(frozen=True)
class DefinitionCounts:
    """The numbers of one server; `declared` and `pending` are by kind."""

    declared: Counter[str] = field(default_factory=Counter)
    pending: Counter[str] = field(default_factory=Counter)
    refused: int = 0

    @property
    def tools(self) -> int:
        """Return the number of declared tools."""
        return self.declared[Definition.Kind.TOOL]

    @property
    def pending_total(self) -> int:
        """Return the number of definitions pending review, of all kinds."""
        return self.pending.total()


def count_definitions(servers: Iterable[Server]) -> dict[UUID, DefinitionCounts]:
    """Return the counts of each server by its id (one query)."""
    rows = (
        Definition.objects.filter(server__in=servers)
        .order_by()
        .values("server", "kind")
        .annotate(
            declared=Count("pk", filter=Q(present=True)),
            pending=Count("pk", filter=AWAITING_REVIEW),
            refused=Count("pk", filter=~Q(fault="")),
        )
    )
    rows_of_server: dict[UUID, list[Any]] = {server.pk: [] for server in servers}
    for row in rows:
        rows_of_server[row["server"]].append(row)
    return {
        server_id: DefinitionCounts(
            declared=Counter({str(row["kind"]): row["declared"] for row in kind_rows}),
            pending=Counter({str(row["kind"]): row["pending"] for row in kind_rows}),
            refused=sum(row["refused"] for row in kind_rows),
        )
        for server_id, kind_rows in rows_of_server.items()
    }
