"""All declared definitions are listed, page by page; invalid ones don't hide others."""

import asyncio
from typing import Any, get_args

import pytest

from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.list_definitions import Kind, ServerDeclarations
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import faulty_stdio, http
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest


def names(survey: ServerDeclarations, kind: str = "tool") -> list[str]:
    return [item.name for item in survey.items if item.kind == kind]


def faults(survey: ServerDeclarations) -> dict[str, str]:
    return {item.name: item.fault for item in survey.items if item.fault}


async def test_all_definitions_of_a_modern_server_are_listed(
    connections: ConnectionPool, modern_url: str
):
    survey = await connections.fetch_declarations(http(modern_url))
    assert (survey.era, survey.protocol_version) == ("modern", "2026-07-28")
    assert survey.server_info["name"] == "modern-test-server"
    assert survey.discovery["supportedVersions"] == ["2026-07-28"]
    assert names(survey) == [
        "add",
        "echo",
        "slow",
        "wait",
        "outcomes",
        "routed",
        "fail",
        "introduce",
        "paint",
    ]
    assert names(survey, "resource") == ["test://text/static"]
    assert names(survey, "resource_template") == ["test://text/{name}"]
    assert names(survey, "prompt") == ["review", "Grüße 👋"]
    instructions = survey.items[-1]
    assert (instructions.kind, instructions.payload) == (
        "instructions",
        {"text": survey.instructions},
    )
    assert survey.notices == ()
    assert faults(survey) == {}
    assert survey.complete == {*get_args(Kind)}
    assert isinstance(survey.latency_ms, int)


async def test_definitions_are_returned_as_declared(connections: ConnectionPool, modern_url: str):
    survey = await connections.fetch_declarations(http(modern_url))
    echo = next(item for item in survey.items if item.name == "echo")
    assert echo.payload["description"] == "Return the text as it is."
    assert echo.payload["inputSchema"]["required"] == ["text"]


async def test_listing_definitions_leaves_no_connection(connections: ConnectionPool):
    await connections.fetch_declarations(faulty_stdio())
    assert not connections._stdio_pool._entries


async def test_an_invalid_definition_doesnt_hide_others(connections: ConnectionPool):
    survey = await connections.fetch_declarations(faulty_stdio(catalog="mixed"))
    assert faults(survey) == {
        "no schema": "`inputSchema` is not an object.",
        "list schema": "`inputSchema` is not an object.",
        "string schema": "`inputSchema` does not describe an object.",
        "description": "`description` is not a text.",
        "annotations": "`annotations` is not an object.",
        "large": "The definition is larger than 64 KiB.",
        "(unnamed tool 9)": "It has no `name`.",
        "(unnamed tool 10)": "It has no `name`.",
        "(unnamed tool 11)": "It has no `name`.",
        "(unnamed tool 12)": "The definition is not an object.",
        "(unnamed tool 13)": "The definition is not an object.",
        "(unnamed resource 16)": "It has no `uri`.",
        "bad": "`arguments` is not a list of named arguments.",
    }
    assert [name for name in names(survey) if name not in faults(survey)] == [
        "good",
        "titled",
        "mirrored",
    ]
    assert survey.notices == ("The tool `good` is declared twice; the first counts.",)
    assert "tool" in survey.complete


async def test_an_invalid_header_annotation_is_an_error_only_over_http(connections: ConnectionPool):
    tool = {"name": "t", "inputSchema": {"properties": {"a": {"x-mcp-header": "a b"}}}}

    def respond(request: RecordedRequest) -> bytes:
        if request.method == "server/discover":
            return raw_http_server.discovery(request)
        return raw_http_server.result(request, {"tools": [tool]})

    async with RawHttp(respond).listening() as server:
        survey = await connections.fetch_declarations(http(server.url))
    assert "x-mcp-header" in faults(survey)["t"]


async def test_only_declared_capabilities_are_listed(connections: ConnectionPool):
    def respond(request: RecordedRequest) -> bytes:
        if request.method == "server/discover":
            return raw_http_server.discovery(request)
        return raw_http_server.result(request, {"tools": []})

    async with RawHttp(respond).listening() as server:
        survey = await connections.fetch_declarations(http(server.url))
        assert server.methods() == ["server/discover", "tools/list"]
    assert survey.items == ()
    assert survey.complete == {*get_args(Kind)}


async def test_pages_are_followed_to_the_end(connections: ConnectionPool):
    survey = await connections.fetch_declarations(faulty_stdio(catalog="paged"))
    assert names(survey) == ["t0", "t1", "t2"]
    assert "tool" in survey.complete


@pytest.mark.parametrize(
    ("catalog", "count", "reason"),
    [
        ("endless", 100, "more than 100 pages"),
        ("repeated", 2, "cursor was there before"),
        ("huge", 1000, "more than 1000 definitions"),
        ("heavy", None, "more than 8 MiB"),
        ("odd_cursor", 1, "cursor is not a short text"),
        ("not_a_list", 0, "not a list"),
    ],
)
async def test_an_endless_listing_is_truncated_and_reported(
    connections: ConnectionPool, catalog: str, count: int | None, reason: str
):
    survey = await connections.fetch_declarations(faulty_stdio(catalog=catalog))
    assert count is None or len(names(survey)) == count
    assert [notice for notice in survey.notices if reason in notice]
    assert "tool" not in survey.complete


def build_failing_server(*methods: str) -> RawHttp:
    """Return a server whose listings of these methods fail."""

    def respond(request: RecordedRequest) -> bytes:
        if request.method == "server/discover":
            capabilities = {"tools": {}, "resources": {}, "prompts": {}}
            return raw_http_server.discovery(request, capabilities=capabilities)
        if request.method in methods:
            return raw_http_server.error(request, -32603, 200, text="broken")
        if request.method == "resources/templates/list":
            return raw_http_server.error(request, -32601, 404)
        return raw_http_server.result(request, {"tools": [{"name": "a", "inputSchema": {}}]})

    return RawHttp(respond)


async def test_a_failing_listing_doesnt_hide_others(connections: ConnectionPool):
    async with build_failing_server("prompts/list", "resources/list").listening() as server:
        survey = await connections.fetch_declarations(http(server.url))
    assert names(survey) == ["a"]
    assert survey.complete == {"tool", "skill", "instructions"}
    assert [notice.partition("`: ")[0] for notice in survey.notices] == [
        "`resources/list` failed: `a server",
        "`prompts/list` failed: `a server",
    ] or all("broken" in notice for notice in survey.notices)


async def test_discovery_fails_if_every_listing_fails(connections: ConnectionPool):
    everything = ("tools/list", "prompts/list", "resources/list")
    async with build_failing_server(*everything).listening() as server:
        with pytest.raises(UpstreamError, match="broken"):
            await connections.fetch_declarations(http(server.url))


async def test_a_hanging_listing_ends_discovery_at_its_timeout(connections: ConnectionPool):
    with pytest.raises(UpstreamError) as error:
        await connections.fetch_declarations(faulty_stdio(catalog="silent"), timeout_s=1.5)
    assert error.value.code == "call_timeout"
    assert "1.5 s" in str(error.value)


async def test_refused_credentials_end_discovery(connections: ConnectionPool):
    def respond(request: RecordedRequest) -> bytes:
        return (
            raw_http_server.discovery(request)
            if request.method == "server/discover"
            else raw_http_server.response(401)
        )

    async with RawHttp(respond).listening() as server:
        with pytest.raises(UpstreamError) as error:
            await connections.fetch_declarations(http(server.url))
    assert error.value.code == "needs_reauth"


async def test_the_server_info_can_have_any_value(connections: ConnectionPool):
    odd: dict[str, Any] = {"capabilities": [], "instructions": 7, "_meta": []}

    async with RawHttp(
        lambda request: raw_http_server.discovery(request, **odd)
    ).listening() as server:
        survey = await connections.fetch_declarations(http(server.url))
    assert (survey.server_info, survey.capabilities, survey.instructions) == ({}, {}, "")
    assert survey.items == ()


async def test_many_servers_are_discovered_in_parallel(connections: ConnectionPool):
    def respond(request: RecordedRequest) -> Any:
        return (
            raw_http_server.discovery(request)
            if request.method == "server/discover"
            else raw_http_server.result(request, {"tools": []})
        )

    async with RawHttp(respond).listening() as server:
        surveys = await asyncio.gather(
            *(connections.fetch_declarations(http(server.url)) for _ in range(50))
        )
    assert {survey.era for survey in surveys} == {"modern"}
