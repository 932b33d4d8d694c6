"""Streamable HTTP with real and hostile endpoints: eras, sessions, statuses, limits."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION

from mcp_servers.client import deadlines, protocol_versions
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import HOLDER, call, failure, http, text_of
from tests.servers import raw_http_server
from tests.servers.raw_http_server import HandshakeHttp, RawHttp, RecordedRequest, modern

LIMIT_S = 0.3
Events = AsyncIterator[bytes]


def test_the_supported_versions_are_those_of_the_sdk():
    assert protocol_versions.MODERN_VERSION == LATEST_MODERN_VERSION
    assert protocol_versions.HANDSHAKE_VERSIONS == HANDSHAKE_PROTOCOL_VERSIONS


# --- the modern era, with the SDK's server


async def test_a_modern_server_is_called_without_a_handshake(
    connections: ConnectionPool, modern_url: str
):
    endpoint = http(modern_url, era="modern")
    result = await call(connections, endpoint, "add", a=2, b=3)
    assert result["structuredContent"] == {"result": 5}
    assert result["resultType"] == "complete"


async def test_a_modern_server_is_detected_and_its_era_stored(
    connections: ConnectionPool, modern_url: str
):
    endpoint = http(modern_url)
    assert text_of(await call(connections, endpoint, "echo", text="ü")) == "ü"
    handshake = await connections.perform_handshake(endpoint, holder=HOLDER)
    assert (handshake.era, handshake.server_info["name"]) == ("modern", "modern-test-server")
    assert handshake.instructions.startswith("Add with")


async def test_progress_of_a_modern_call_is_reported_in_order(
    connections: ConnectionPool, modern_url: str
):
    reports: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    endpoint = http(modern_url, era="modern")
    result = await call(connections, endpoint, "slow", on_progress=on_progress)
    assert text_of(result) == "done"
    assert reports == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


async def test_progress_extends_the_deadline_that_the_caller_did_not_choose_up_to_a_bound(
    connections: ConnectionPool, monkeypatch: pytest.MonkeyPatch
):
    handled = asyncio.Event()

    async def report(request: RecordedRequest) -> Events:
        handled.set()
        yield raw_http_server.STREAM
        while await handled.wait():
            handled.clear()
            token = {"progressToken": request.id, "progress": 1}
            yield raw_http_server.event({"method": "notifications/progress", "params": token})

    report_times: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        report_times.append(asyncio.get_running_loop().time())
        handled.set()

    async def measure(factor: int, **more: float) -> float:
        monkeypatch.setattr(deadlines, "PROGRESS_FACTOR", factor)
        started_at = asyncio.get_running_loop().time()
        endpoint = http(server.url, era="modern", read_s=1)
        error = await failure(call(connections, endpoint, "x", on_progress=on_progress, **more))
        assert error.code == "call_timeout"
        return report_times[-1] - started_at

    async with modern(report).listening() as server:
        assert 1.5 < await measure(3) < 3.5
        assert await measure(3, timeout_s=1) < 1.5


async def test_a_name_that_isnt_ascii_is_sent_in_the_headers(
    connections: ConnectionPool, modern_url: str
):
    params = {"name": "Grüße 👋", "arguments": {"name": "Bo"}}
    endpoint = http(modern_url, era="modern")
    result = await connections.send_request(endpoint, "prompts/get", params, holder=HOLDER)
    assert result["messages"][0]["content"]["text"] == "Grüße, Bo!"


async def test_arguments_are_sent_as_headers_if_the_schema_says_so(
    connections: ConnectionPool, modern_url: str
):
    endpoint = http(modern_url, era="modern")
    declarations = await connections.fetch_declarations(endpoint)
    schema = next(
        item.payload["inputSchema"] for item in declarations.items if item.name == "routed"
    )
    result = await call(connections, endpoint, "routed", input_schema=schema, region="eu ü")
    assert text_of(result) == "eu ü x 1"
    error = await failure(call(connections, endpoint, "routed", region="eu"))
    assert error.rpc_code == -32020


async def test_a_call_that_is_given_up_is_canceled_and_the_server_stays_usable(
    connections: ConnectionPool, modern_url: str
):
    endpoint = http(modern_url, era="modern")
    error = await failure(call(connections, endpoint, "wait", key="k1", timeout_s=LIMIT_S))
    assert (error.code, error.sent, error.retryable) == ("call_timeout", True, False)
    async with asyncio.timeout(5):
        while text_of(await call(connections, endpoint, "outcomes", key="k1")) != "cancelled":
            pass


async def test_an_error_of_a_modern_server_keeps_its_code(
    connections: ConnectionPool, modern_url: str
):
    endpoint = http(modern_url, era="modern")
    error = await failure(connections.send_request(endpoint, "no/such", {}, holder=HOLDER))
    assert (error.rpc_code, error.http_status) == (-32601, 404)
    assert error.code == "upstream_error"


async def test_calls_of_all_holders_share_one_pool(connections: ConnectionPool, modern_url: str):
    endpoint = http(modern_url, era="modern")
    calls = [call(connections, endpoint, "add", a=n, b=1, holder=f"session:{n}") for n in range(20)]
    results = await asyncio.gather(*calls)
    assert [result["structuredContent"]["result"] for result in results] == list(range(1, 21))
    assert len(connections._upstreams) == 1


# --- the handshake era, with the TypeScript SDK's server


@pytest.fixture
def everything_url(node_server: Callable[[str], str], free_port: int) -> Iterator[str]:
    command = [node_server("mcp-server-everything"), "streamableHttp"]
    with subprocess.Popen(
        command,
        env={"PATH": os.environ["PATH"], "PORT": str(free_port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stderr is not None
        for line in server.stderr:
            if str(free_port) in line:
                break
        yield f"http://127.0.0.1:{free_port}/mcp"
        server.terminate()


@pytest.mark.npm
async def test_a_handshake_era_server_is_detected_and_called(
    connections: ConnectionPool, everything_url: str
):
    endpoint = http(everything_url)
    assert text_of(await call(connections, endpoint, "echo", message="hi")) == "Echo: hi"
    greeting = await connections.perform_handshake(endpoint, holder=HOLDER)
    assert (greeting.era, greeting.protocol_version) == ("handshake", "2025-11-25")
    survey = await connections.fetch_declarations(endpoint)
    assert {item.kind for item in survey.items} >= {"tool", "prompt", "resource", "instructions"}
    assert survey.notices == ()
    assert [item for item in survey.items if item.fault] == []


# --- eras


@pytest.mark.parametrize(
    "refusal",
    [
        lambda request: raw_http_server.response(400, b"Bad Request", "text/plain"),
        lambda request: raw_http_server.response(404, b"<html>", "text/html"),
        lambda request: raw_http_server.response(405),
        lambda request: raw_http_server.response(500),
        lambda request: raw_http_server.error(request, -32600, 400),
        lambda request: raw_http_server.error(request, -32601, 200),
        lambda request: raw_http_server.error(request, -32022, 400, {"supported": ["2025-11-25"]}),
        lambda request: raw_http_server.error(request, -32022, 400),
        lambda request: raw_http_server.result(request, {"supportedVersions": ["2025-06-18"]}),
        lambda request: raw_http_server.result(request, {"something": "else"}),
    ],
)
async def test_a_server_that_refuses_the_probe_gets_a_handshake(
    connections: ConnectionPool, refusal: Callable[[RecordedRequest], bytes]
):
    def respond(request: RecordedRequest) -> bytes:
        if request.method == "server/discover":
            return refusal(request)
        if request.method == "initialize":
            return raw_http_server.initialization(request)
        return raw_http_server.response(202, kind="")

    async with RawHttp(respond).listening() as server:
        greeting = await connections.perform_handshake(http(server.url), holder=HOLDER)
    assert greeting.era == "handshake"


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (lambda request: raw_http_server.response(401), "needs_reauth"),
        (lambda request: raw_http_server.response(503), "server_unreachable"),
        (lambda request: raw_http_server.error(request, -32020), "upstream_error"),
        (lambda request: raw_http_server.error(request, -32021), "upstream_error"),
        (
            lambda request: raw_http_server.error(
                request, -32022, 400, {"supported": ["2030-01-01"]}
            ),
            "protocol_error",
        ),
    ],
)
async def test_no_handshake_follows_an_outage_or_a_modern_error(
    connections: ConnectionPool, refusal: Callable[[RecordedRequest], bytes], code: str
):
    async with RawHttp(refusal).listening() as server:
        error = await failure(connections.perform_handshake(http(server.url), holder=HOLDER))
        assert error.code == code
        assert "initialize" not in server.methods()


async def test_a_wrong_stored_modern_era_is_detected_again(connections: ConnectionPool):
    era = HandshakeHttp(raw_http_server.text)
    async with RawHttp(era).listening() as server:
        endpoint = http(server.url, era="modern")
        assert text_of(await call(connections, endpoint, "x")) == "ok"
        assert text_of(await call(connections, endpoint, "x")) == "ok"
        assert server.methods().count("server/discover") == 1
        assert era.opened == 1


async def test_a_wrong_stored_handshake_era_is_detected_again(
    connections: ConnectionPool, modern_url: str
):
    def respond(request: RecordedRequest) -> bytes:
        if request.method == "initialize":
            return raw_http_server.error(
                request, -32022, 400, {"supported": [protocol_versions.MODERN_VERSION]}
            )
        return raw_http_server.text(request)

    async with modern(respond).listening() as server:
        endpoint = http(server.url, era="handshake")
        assert text_of(await call(connections, endpoint, "x")) == "ok"
        assert server.methods() == ["initialize", "server/discover", "tools/call"]


async def test_a_modern_error_is_requested_only_once_more(
    connections: ConnectionPool,
):
    async with modern(
        lambda request: raw_http_server.error(request, -32000, 400)
    ).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
        assert error.rpc_code == -32000
        assert server.methods() == ["tools/call", "server/discover"]


async def test_a_server_without_discover_and_handshake_is_reported_with_its_error(
    connections: ConnectionPool,
):
    async with RawHttp(lambda request: raw_http_server.response(404)).listening() as server:
        error = await failure(
            connections.perform_handshake(http(server.url, era="handshake"), holder=HOLDER)
        )
    assert (error.code, error.http_status) == ("protocol_error", 404)
    assert "URL" in error.remedy


async def test_a_new_discovery_detects_the_era_again(connections: ConnectionPool):
    era = HandshakeHttp(raw_http_server.text)
    async with RawHttp(era).listening() as server:
        endpoint = http(server.url)
        assert (await connections.fetch_declarations(endpoint)).era == "handshake"
        server.respond = lambda request: raw_http_server.discovery(request, tools=[])
        assert (await connections.fetch_declarations(endpoint)).era == "modern"


async def test_a_server_that_refuses_a_version_it_lists_is_asked_again(
    connections: ConnectionPool,
):
    def respond(request: RecordedRequest) -> bytes:
        if len(server.asked) == 1:
            return raw_http_server.error(
                request, -32022, 400, {"supported": [protocol_versions.MODERN_VERSION]}
            )
        return raw_http_server.discovery(request)

    server = RawHttp(respond)
    async with server.listening():
        assert (
            await connections.perform_handshake(http(server.url), holder=HOLDER)
        ).era == "modern"
    assert server.methods() == ["server/discover"] * 2
