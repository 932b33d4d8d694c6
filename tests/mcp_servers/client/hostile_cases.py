"""The hostile cases: each server's behavior, the request, and the expected outcomes."""

import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import ConnectionPool
from mcp_servers.schemas.subprocess_pool import classify_schemas
from tests.mcp_servers.client.endpoints import faulty_stdio, http, stdio
from tests.mcp_servers.client.measure_hostile_servers import DEADLINE_S

LONG_S = 20.0  # for cases that end at one of our limits instead of the deadline
FLOODED_S = 0.5  # for cases that send as long as we read
START_S = 0.5
LATE, GONE = ("call_timeout",), ("server_unreachable",)
BROKEN, LARGE, CRASHED = ("protocol_error",), ("response_too_large",), ("server_crashed",)
FINE = ("",)

Run = Callable[[ConnectionPool, ServerEndpoint, str], Awaitable[Any]]


@dataclass(frozen=True)
class Case:
    """One hostile server; `codes` are the allowed outcomes, "" for a result."""

    name: str
    codes: tuple[str, ...]
    run: Run
    endpoint: Callable[[str], ServerEndpoint]
    expected_text: str = ""
    deadline_s: float = DEADLINE_S
    warm: bool = False


async def good_call(connections: ConnectionPool, endpoint: ServerEndpoint) -> Any:
    params = {"name": "echo", "arguments": {}}
    return await connections.send_request(endpoint, "tools/call", params, holder="session:neighbor")


async def prepare(connections: ConnectionPool, case: Case, url: str) -> ServerEndpoint:
    """Return the endpoint of a case; warm ones have already completed the handshake."""
    endpoint = case.endpoint(url)
    if case.warm:
        await connections.perform_handshake(
            endpoint, holder=f"session:{endpoint.server_id}", timeout_s=30
        )
    return endpoint


def build_call(tool: str, deadline_s: float, **arguments: Any) -> Run:
    async def run(connections: ConnectionPool, endpoint: ServerEndpoint, holder: str) -> None:
        await connections.send_request(
            endpoint,
            "tools/call",
            {"name": tool, "arguments": arguments},
            holder=f"session:{endpoint.server_id}",
            timeout_s=deadline_s,
        )

    return run


def build_listing_run(deadline_s: float) -> Run:
    async def run(connections: ConnectionPool, endpoint: ServerEndpoint, holder: str) -> str:
        declarations = await connections.fetch_declarations(endpoint, timeout_s=deadline_s)
        assert len(declarations.items) <= endpoint.max_definitions + 1  # the instructions
        return f"{len(declarations.items)} definitions; {' '.join(declarations.notices)}"

    return run


async def classify_listed_schemas(
    connections: ConnectionPool, endpoint: ServerEndpoint, holder: str
) -> str:
    """List schemas that are bombs, and classify them as a discovery does."""
    declarations = await connections.fetch_declarations(endpoint)
    tools = [item.payload for item in declarations.items]
    verdicts = await classify_schemas([tool["inputSchema"] for tool in tools])
    verdict_by_name = {
        tool["name"]: result.verdict for tool, result in zip(tools, verdicts, strict=True)
    }
    return " ".join(f"{name}={verdict}" for name, verdict in sorted(verdict_by_name.items()))


def http_case(
    name: str,
    codes: tuple[str, ...],
    expected_text: str = "",
    deadline_s: float = DEADLINE_S,
    **more: Any,
) -> Case:
    return Case(
        name=f"http {name}",
        codes=codes,
        run=build_call("x", deadline_s),
        endpoint=lambda url: http(f"{url}/{name}", era="modern", **more),
        expected_text=expected_text,
        deadline_s=deadline_s,
    )


def stdio_case(
    name: str,
    codes: tuple[str, ...],
    expected_text: str = "",
    deadline_s: float = DEADLINE_S,
    tool: str = "",
    **arguments: Any,
) -> Case:
    return Case(
        name=f"stdio {name}",
        codes=codes,
        run=build_call(tool or name, deadline_s, **arguments),
        endpoint=lambda url: faulty_stdio("modern", era="modern"),
        expected_text=expected_text,
        deadline_s=deadline_s,
        warm=True,
    )


def start_case(name: str, codes: tuple[str, ...], expected_text: str, *command: str) -> Case:
    async def run(connections: ConnectionPool, endpoint: ServerEndpoint, holder: str) -> None:
        await connections.perform_handshake(endpoint, holder=holder, timeout_s=LONG_S)

    return Case(
        name=f"stdio start {name}",
        codes=codes,
        run=run,
        endpoint=lambda url: stdio(*command, start_s=START_S),
        expected_text=expected_text,
        deadline_s=LONG_S,
    )


def listing_cases(name: str, expected_text: str, codes: tuple[str, ...] = FINE) -> Iterator[Case]:
    yield Case(
        name=f"http list {name}",
        codes=codes,
        run=build_listing_run(LONG_S),
        endpoint=lambda url: http(f"{url}/{name}", era="modern"),
        expected_text=expected_text,
        deadline_s=LONG_S,
    )
    yield Case(
        name=f"stdio list {name}",
        codes=codes,
        run=build_listing_run(LONG_S),
        endpoint=lambda url: faulty_stdio("modern", name, era="modern"),
        expected_text=expected_text,
        deadline_s=LONG_S,
    )


CASES: tuple[Case, ...] = (
    http_case("hang", LATE),
    http_case("hang_up", GONE, deadline_s=LONG_S),
    http_case("headers_only", LATE),
    http_case("cut_body", GONE, deadline_s=LONG_S),
    http_case("drip_status", (*LATE, *GONE)),
    http_case("drip_headers", LATE),
    http_case("drip_body", LATE),
    http_case("drip_comments", LATE),
    http_case("endless_interim", LATE),
    http_case("endless_header", GONE, deadline_s=LONG_S),
    http_case("endless_body", LARGE, deadline_s=LONG_S),
    http_case("endless_chunks", (*LATE, *LARGE)),
    http_case("endless_events", (*LATE, *LARGE), deadline_s=FLOODED_S),
    http_case("endless_event", LARGE, deadline_s=LONG_S),
    http_case("endless_requests", (*LATE, *LARGE), deadline_s=FLOODED_S),
    http_case("garbage", GONE, deadline_s=LONG_S),
    http_case("garbage_body", BROKEN, "not JSON", deadline_s=LONG_S),
    http_case("garbage_events", (*BROKEN, *GONE), deadline_s=LONG_S),
    http_case("wrong_id", BROKEN, "wasn't requested", deadline_s=LONG_S),
    http_case("text_id", BROKEN, "wasn't requested", deadline_s=LONG_S),
    http_case("repeated_id", FINE, deadline_s=LONG_S),
    http_case("large_body", LARGE, "4,194,304", deadline_s=LONG_S),
    http_case("large_event", LARGE, "4,194,304", deadline_s=LONG_S),
    http_case("gzip", BROKEN, "gzip", deadline_s=LONG_S),
    http_case("nested", BROKEN, "too many values", deadline_s=LONG_S),
    http_case("wide", BROKEN, deadline_s=LONG_S),
    http_case("long_number", BROKEN, deadline_s=LONG_S),
    http_case("not_json", BROKEN, "text/html", deadline_s=LONG_S),
    http_case("no_type", BROKEN, deadline_s=LONG_S),
    http_case("many_headers", GONE, deadline_s=LONG_S),
    http_case("large_header", GONE, deadline_s=LONG_S),
    http_case("broken_header", GONE, deadline_s=LONG_S),
    http_case("two_lengths", GONE, deadline_s=LONG_S),
    http_case("negative_length", GONE, deadline_s=LONG_S),
    http_case("redirect_loop", ("redirect_denied",), "redirect", deadline_s=LONG_S),
    http_case("redirect_inward", ("redirect_denied",), "redirect", deadline_s=LONG_S),
    http_case("large_refusal", ("upstream_error",), "500", deadline_s=LONG_S),
    http_case("large_challenge", ("needs_reauth",), "401", deadline_s=LONG_S),
    replace(
        http_case("good", GONE, "headers can't be sent", headers={"X-Key": "a\r\nHost: elsewhere"}),
        name="http header injection",
    ),
    start_case("crash", CRASHED, "status 3", "sh", "-c", "echo no key >&2; exit 3"),
    start_case("hang", GONE, f"within {START_S} s", "sleep", "60"),
    start_case(
        "garbage", (*GONE, *BROKEN), "", "sh", "-c", "head -c 10000000 /dev/urandom; sleep 60"
    ),
    start_case("flood", (*GONE, *CRASHED), "", sys.executable, "-c", "while 1: print('x' * 9**5)"),
    start_case("absent", GONE, "no-such-command", "no-such-command"),
    stdio_case("crash", CRASHED, "out of cheese", deadline_s=LONG_S),
    stdio_case("close_output", (*CRASHED, *LATE)),
    stdio_case("hang", LATE),
    stdio_case("block", LATE),
    stdio_case("drip", LATE),
    stdio_case("garbage", FINE, deadline_s=LONG_S),
    stdio_case("broken_json", BROKEN, deadline_s=LONG_S),
    stdio_case("wrong_id", LATE),
    stdio_case("twice", FINE, deadline_s=LONG_S),
    stdio_case("long_line", LARGE, "4,194,304", deadline_s=LONG_S, id_last=True),
    stdio_case("endless_line", (*CRASHED, *LARGE), deadline_s=LONG_S),
    stdio_case("deep", BROKEN, "64", deadline_s=LONG_S),
    stdio_case("wide", BROKEN, deadline_s=LONG_S),
    stdio_case("not_an_object", BROKEN, deadline_s=LONG_S),
    stdio_case("flood", LATE, deadline_s=FLOODED_S),
    stdio_case(
        "flood of questions", LATE, deadline_s=FLOODED_S, tool="flood", asks=True, method="ping"
    ),
    stdio_case("complain_for_ever", LATE, deadline_s=FLOODED_S),
    *listing_cases("many_tools", "", (*FINE, *BROKEN, *LARGE)),
    *listing_cases("many_pages", "more than 1000 definitions"),
    *listing_cases("endless_cursor", "more than 100 pages"),
    *listing_cases("repeated_cursor", "there before"),
    *listing_cases("large_cursor", "", (*FINE, *LARGE)),
    Case(
        name="http bombs in schemas",
        codes=FINE,
        run=classify_listed_schemas,
        endpoint=lambda url: http(f"{url}/bombs", era="modern"),
        expected_text="in-remote=refused",
        deadline_s=LONG_S,
    ),
)
