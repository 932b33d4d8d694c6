"""Count an agent's latest successful calls by tool."""

from collections import Counter
from uuid import UUID

from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import Actor

# The agent's latest entries that are read: this bounds the query on any audit log.
MAX_READ_ENTRIES = 2_000


def count_recent_successes(
    organization_id: UUID, agent_id: UUID | None, actor: Actor | None = None
) -> Counter[tuple[UUID | None, str]]:
    """Return how many of an agent's latest calls succeeded, by server and the tool's own name.

    With `actor`, only the calls of that person or program are counted.
    """
    if agent_id is None:
        return Counter()
    rows = AuditRow.objects.filter(organization_id=organization_id, agent_id=agent_id)
    fields = ("server_id", "tool_name", "outcome", "actor_kind", "actor_id")
    latest = rows.order_by("-opened_at").values_list(*fields)[:MAX_READ_ENTRIES]
    return Counter(
        (server_id, tool_name)
        for server_id, tool_name, outcome, actor_kind, actor_id in latest
        if server_id is not None and tool_name and outcome == AuditRow.Outcome.OK
        if actor is None or (actor_kind, actor_id) == (actor.kind, actor.id)
    )
