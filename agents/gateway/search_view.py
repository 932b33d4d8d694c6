"""The search view of an agent's endpoint: `find_tools`, `describe_tool` and `call_tool`.

`find_tools` and `describe_tool` are built-in tools, called like any other. `call_tool` is replaced
by a call of the tool it names before anything is decided, so the policy, approvals, budgets, labels
and the audit log see that tool only. Other names are unknown here. Resources and prompts are the
same as without the view.
"""

from dataclasses import replace
from typing import Any

from agents.builtin_tools.toolsets.find_tools import (
    CALL_TOOL,
    CALL_TOOL_DECLARATION,
    CATALOG_TOOLS,
    FIND_TOOLS,
)
from agents.calls.snapshots import CallSnapshot, SnapshotTool
from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.catalog import Declaration, DeclarationList
from agents.gateway.client_request import GatewayRequest
from agents.gateway.errors import build_refusal_result, build_unknown_name_error
from agents.gateway.forwarded_requests import (
    Kind,
    UpstreamHandlers,
    UpstreamRequest,
    get_snapshot,
    read_endpoint,
)
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.schemas import SchemaVerdict
from mcp_servers.schemas.subprocess_pool import check_tool_arguments

_INLINE = SchemaVerdict("inline", "")


class SearchViewHandlers(UpstreamHandlers):
    """Handlers of agents' endpoints with `?view=search`."""

    async def list_declarations(
        self, caller: AuthenticatedClient, kind: Kind
    ) -> tuple[Declaration, ...]:
        """Return the tools of the view; other declarations are the agent's."""
        if kind == "tools":
            snapshot = await get_runtime().run_orm(read_endpoint, caller)
            if has_search_view(caller, snapshot):
                return _list_view_tools(snapshot)
        return await super().list_declarations(caller, kind)

    async def call_tool(
        self, inbound: GatewayRequest, *, is_by_model: bool = False
    ) -> dict[str, Any]:
        """Answer `tools/call`; `call_tool` calls only what a model may be shown."""
        snapshot = await get_snapshot(inbound)
        if not has_search_view(inbound.caller, snapshot):
            return await super().call_tool(inbound)
        name, arguments = inbound.get_text("name"), inbound.get_object("arguments")
        if name == CALL_TOOL:
            try:
                await check_tool_arguments(CALL_TOOL_DECLARATION["inputSchema"], arguments, _INLINE)
            except Problem as problem:
                return build_refusal_result(problem)
            params = {**inbound.params, "name": arguments["name"]}
            return await super().call_tool(
                replace(inbound, params=params | {"arguments": arguments.get("arguments", {})}),
                is_by_model=True,
            )
        tool = find_view_tool(snapshot, name)
        if tool is None:
            raise build_unknown_name_error("tool", name)
        try:
            return await self._call_with_approval(
                inbound, UpstreamRequest("tools/call", name, name, arguments, is_catalog_tool=True)
            )
        except Problem as problem:
            return build_refusal_result(problem)


def has_search_view(caller: AuthenticatedClient, snapshot: CallSnapshot) -> bool:
    """Tell whether a client gets the search view; not if the policy denies `find_tools`."""
    return caller.target.view == "search" and find_view_tool(snapshot, FIND_TOOLS) is not None


def find_view_tool(snapshot: CallSnapshot, name: str) -> SnapshotTool | None:
    """Return a built-in tool of the view; None for another name or one that the policy denies."""
    tool = snapshot.find_catalog_tool(name)
    return tool if tool and tool.decision.is_callable else None


def find_view_schema(snapshot: CallSnapshot, name: str) -> dict[str, Any] | None:
    """Return the input schema of a tool of the view; None for another name."""
    if name == CALL_TOOL:
        schema: dict[str, Any] = CALL_TOOL_DECLARATION["inputSchema"]
        return schema
    tool = find_view_tool(snapshot, name)
    return tool.input_schema if tool else None


def _list_view_tools(snapshot: CallSnapshot) -> DeclarationList:
    tools: DeclarationList | None = snapshot.memo.get("search view")
    if tools is None:
        names = [name for name in CATALOG_TOOLS if find_view_tool(snapshot, name)]
        builtin = (CATALOG_TOOLS[name].declaration for name in names)
        tools = snapshot.memo["search view"] = DeclarationList((*builtin, CALL_TOOL_DECLARATION))
    return tools
