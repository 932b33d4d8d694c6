"""Give each tool of an agent its stored name (DESIGN section 4, "Names of tools").

A name is made once, when a tool is first seen, and looked up from then on. Two processes that see
a new tool at the same time meet at the unique constraint, and the later one reads what the first
made.
"""

from collections.abc import Sequence
from typing import cast
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction

from agents.builtin_tools import BUILTIN_TOOLS
from agents.models import Agent, ToolName
from mcp_servers.models import Definition, Server
from mcp_servers.naming import Style, tool_name

Names = dict[tuple[UUID, str], str]


def name_tools(agent: Agent, servers: Sequence[Server], rows: Sequence[Definition]) -> Names:
    """Return (server id, own name) → name for `rows`, storing names that are new."""
    names = _stored(agent)
    new = [row for row in rows if (row.server_id, row.name) not in names]
    if not new:
        return names
    try:
        with transaction.atomic():
            ToolName.objects.bulk_create(_made(agent, servers, new, names))
    except IntegrityError:
        # Another process named them between our read and our write; its names hold.
        return name_tools(agent, servers, rows)
    return _stored(agent)


def _stored(agent: Agent) -> Names:
    # Thousands, at each reading of a snapshot: without making objects of them.
    rows = agent.tool_names.values_list("server_id", "own_name", "name")
    return {(server_id, own_name): name for server_id, own_name, name in rows}


def _made(
    agent: Agent, servers: Sequence[Server], new: Sequence[Definition], names: Names
) -> list[ToolName]:
    slugs = {server.pk: server.slug for server in servers}
    taken = set(names.values()) | set(BUILTIN_TOOLS)
    made = []
    for row in new:
        name = tool_name(
            slugs[row.server_id],
            row.name,
            style=cast(Style, settings.BONOBOT_TOOL_NAME_STYLE),
            taken=taken,
        )
        taken.add(name)
        made.append(
            ToolName(
                organization_id=agent.organization_id,
                agent=agent,
                server_id=row.server_id,
                own_name=row.name,
                name=name,
            )
        )
    return made
