"""The names of agents' tools.

A tool's name is created when the tool is first seen and stored; calls find it in both styles. If
two processes create it at the same time, the unique constraint lets one win, and the other reads
that name.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import cast
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction

from agents.builtin_tools.registry import BUILTIN_TOOLS
from agents.models import Agent, ToolName
from mcp_servers.models import Definition, Server
from mcp_servers.tool_names import Style, build_tool_name, build_tool_names, has_style

ToolNames = dict[tuple[UUID, str], str]


def create_tool_names(
    agent: Agent, servers: Sequence[Server], rows: Sequence[Definition]
) -> ToolNames:
    """Return (server id, own name) → name for `rows`; stores new names."""
    names = _load_tool_names(agent)
    style = cast(Style, settings.BONOBOT_TOOL_NAME_STYLE)
    if not all(has_style(name, style) for name in names.values()):
        _restyle_tool_names(agent, style)
        names = _load_tool_names(agent)
    new_rows = [row for row in rows if (row.server_id, row.name) not in names]
    if not new_rows:
        return names
    try:
        with transaction.atomic():
            ToolName.objects.bulk_create(_build_tool_names(agent, servers, new_rows, names))
    except IntegrityError:
        # Another process created the names in the meantime; use those.
        return create_tool_names(agent, servers, rows)
    return _load_tool_names(agent)


def _load_tool_names(agent: Agent) -> ToolNames:
    # There may be thousands per snapshot: don't build model objects.
    rows = agent.tool_names.values_list("server_id", "own_name", "name")
    return {(server_id, own_name): name for server_id, own_name, name in rows}


def _restyle_tool_names(agent: Agent, style: Style) -> None:
    """Rename the agent's tools whose names have another style; old names stay aliases."""
    rows = agent.tool_names.select_related("server").only("name", "own_name", "server__slug")
    outdated = [row for row in rows if not has_style(row.name, style)]
    taken_names = {row.name for row in rows} | set(BUILTIN_TOOLS)
    tools = [(row.server.slug, row.own_name) for row in outdated]
    for row, name in zip(outdated, build_tool_names(tools, style, taken_names), strict=True):
        row.name = name
    # Another process may be renaming them, too; it chooses the same names.
    with suppress(IntegrityError), transaction.atomic():
        ToolName.objects.bulk_update(outdated, ["name"], batch_size=500)


def _build_tool_names(
    agent: Agent, servers: Sequence[Server], new_rows: Sequence[Definition], names: ToolNames
) -> list[ToolName]:
    slugs = {server.pk: server.slug for server in servers}
    taken_names = set(names.values()) | set(BUILTIN_TOOLS)
    tool_names = []
    for row in new_rows:
        name = build_tool_name(
            slugs[row.server_id],
            row.name,
            style=cast(Style, settings.BONOBOT_TOOL_NAME_STYLE),
            taken_names=taken_names,
        )
        taken_names.add(name)
        tool_names.append(
            ToolName(
                organization_id=agent.organization_id,
                agent=agent,
                server_id=row.server_id,
                own_name=row.name,
                name=name,
            )
        )
    return tool_names
