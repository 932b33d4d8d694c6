"""The server: its request handlers and notifications."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourceUpdated,
    ToolsListChanged,
)

from tests.servers.conformance_server import multi_round_tools, resources_and_prompts, tasks, tools
from tests.servers.conformance_server.calls import (
    TOOLS,
    Call,
    Context,
    InputRequired,
    Json,
    text,
    tool,
)

assert multi_round_tools, tools  # importing them registers their tools
HINT = CacheHint(ttl_ms=60_000, scope="public")
WATCHED = "test://watched-resource"
BUS = InMemorySubscriptionBus()
# The triggers add and remove these, so that a list really changes when they notify.
ADDED = replace(TOOLS["test_simple_text"], name="test_added_tool")
ADDED_PROMPT = types.Prompt(name="test_added_prompt", description="Comes and goes")


@tool()
async def test_trigger_tool_change(call: Call) -> Json:
    """Add a tool, or take it away again."""
    if TOOLS.pop(ADDED.name, None) is None:
        TOOLS[ADDED.name] = ADDED
    await BUS.publish(ToolsListChanged())
    if not call.modern:
        await call.context.session.send_tool_list_changed()
    return text("The tools changed")


@tool()
async def test_trigger_prompt_change(call: Call) -> Json:
    """Add a prompt, or take it away again."""
    if resources_and_prompts.PROMPTS.pop(ADDED_PROMPT.name, None) is None:
        resources_and_prompts.PROMPTS[ADDED_PROMPT.name] = ()
    await BUS.publish(PromptsListChanged())
    if not call.modern:
        await call.context.session.send_prompt_list_changed()
    return text("The prompts changed")


@tool()
async def test_trigger_resource_update(call: Call) -> Json:
    """Say that the watched resource is another one now."""
    await BUS.publish(ResourceUpdated(uri=WATCHED))
    if not call.modern:
        await call.context.session.send_resource_updated(WATCHED)
    return text("The resource changed")


async def call_tool(context: Context, params: types.CallToolRequestParams) -> Json:
    """Answer a call."""
    if (called_tool := TOOLS.get(params.name)) is None:
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
    try:
        return await called_tool.run(Call.of(context, params))
    except InputRequired as required:
        return required.result()


async def list_tools(context: Context, params: Any) -> types.ListToolsResult:
    """Return all tools."""
    return types.ListToolsResult(
        tools=[listed_tool.to_declaration() for listed_tool in TOOLS.values()]
    )


async def list_resources(context: Context, params: Any) -> types.ListResourcesResult:
    """Return all resources."""
    return types.ListResourcesResult(resources=resources_and_prompts.resources())


async def list_templates(context: Context, params: Any) -> types.ListResourceTemplatesResult:
    """Return all templates."""
    return types.ListResourceTemplatesResult(resource_templates=resources_and_prompts.templates())


async def list_prompts(context: Context, params: Any) -> types.ListPromptsResult:
    """Return all prompts."""
    return types.ListPromptsResult(prompts=resources_and_prompts.prompts())


async def accept(context: Context, params: Any) -> types.EmptyResult:
    """Accept a subscription or a log level; notifications go to all clients."""
    return types.EmptyResult()


Answer = Callable[[Context, Any], Awaitable[Json]]
HANDLERS: tuple[tuple[str, type[types.RequestParams], Answer], ...] = (
    ("tools/call", types.CallToolRequestParams, call_tool),
    ("resources/read", types.ReadResourceRequestParams, resources_and_prompts.read),
    ("skills/list", types.PaginatedRequestParams, resources_and_prompts.list_skills),
    ("skills/get", types.ReadResourceRequestParams, resources_and_prompts.get_skill),
    ("prompts/get", types.GetPromptRequestParams, resources_and_prompts.prompt),
    ("completion/complete", types.CompleteRequestParams, resources_and_prompts.complete),
)


def _set_result_type(answer: Answer) -> Answer:
    """Set the result type to `complete` unless the result has one."""

    async def complete(context: Context, params: Any) -> Json:
        return {"resultType": "complete", **await answer(context, params)}

    return complete


def build_server() -> Server[Any]:
    """Return the server with all its handlers."""
    server: Server[Any] = Server(
        "everything",
        version="1",
        instructions="Every tool does what its name says.",
        cache_hints={
            "tools/list": HINT,
            "prompts/list": HINT,
            "resources/list": HINT,
            "resources/templates/list": HINT,
            "resources/read": HINT,
        },
        get_tool_input_schema=lambda name: TOOLS[name].schema if name in TOOLS else None,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_list_prompts=list_prompts,
        on_list_tools=list_tools,
        on_subscriptions_listen=ListenHandler(BUS),
    )
    for method, params, answer in HANDLERS:
        server.add_request_handler(method, params, _set_result_type(answer))
    server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, accept)
    server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, accept)
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, accept)
    tasks.register_handlers(server)
    server.extensions["io.modelcontextprotocol/skills"] = {}
    seal = RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="everything")
    server.middleware.append(seal)
    return server


SERVER = build_server()
OPTIONS = SERVER.create_initialization_options(
    NotificationOptions(prompts_changed=True, tools_changed=True)
)
