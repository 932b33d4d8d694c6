"""The hostile cases: what each server does, how it is met, and what has to come of it."""

import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import ConnectionPool
from mcp_servers.schemas.subprocess_pool import classify_schemas
from tests.mcp_servers.client.endpoints import http, scripted, stdio
from tests.mcp_servers.client.measure_hostile_servers import DEADLINE_S

LONG_S = 20.0  # of cases that end by a bound of ours rather than by the deadline
FLOODED_S = 0.5  # of cases that send for as long as we listen
START_S = 0.5
LATE, GONE = ("call_timeout",), ("server_unreachable",)
BROKEN, LARGE, CRASHED = ("protocol_error",), ("response_too_large",), ("server_crashed",)
FINE = ("",)

Meet = Callable[[ConnectionPool, ServerEndpoint, str], Awaitable[Any]]


@dataclass(frozen=True)
class Case:
    """One hostile server. `codes` are what may come of it, "" a result; `told` is in the text."""

    name: str
    codes: tuple[str, ...]
    meet: Meet
    endpoint: Callable[[str], ServerEndpoint]
    told: str = ""
    deadline_s: float = DEADLINE_S
    warm: bool = False


async def good_call(connections: ConnectionPool, endpoint: ServerEndpoint) -> Any:
    params = {"name": "echo", "arguments": {}}
    return await connections.send_request(
        endpoint, "tools/call", params, holder="session:neighbour"
    )


async def prepare(connections: ConnectionPool, case: Case, url: str) -> ServerEndpoint:
    """Return the endpoint of a case; one that is to be met in the middle has greeted."""
    endpoint = case.endpoint(url)
    if case.warm:
        await connections.perform_handshake(
            endpoint, holder=f"session:{endpoint.server_id}", timeout_s=30
        )
    return endpoint


def calling(tool: str, deadline_s: float, **arguments: Any) -> Meet:
    async def meet(connections: ConnectionPool, endpoint: ServerEndpoint, holder: str) -> None:
        await connections.send_request(
            endpoint,
            "tools/call",
            {"name": tool, "arguments": arguments},
            holder=f"session:{endpoint.server_id}",
            timeout_s=deadline_s,
        )

    return meet


def surveying(deadline_s: float) -> Meet:
    async def meet(connections: ConnectionPool, endpoint: ServerEndpoint, holder: str) -> str:
        survey = await connections.fetch_declarations(endpoint, timeout_s=deadline_s)
        assert len(survey.items) <= endpoint.max_definitions + 1  # the instructions
        return f"{len(survey.items)} definitions; {' '.join(survey.notices)}"

    return meet


async def judging(connections: ConnectionPool, endpoint: ServerEndpoint, holder: str) -> str:
    """Discover schemas like bombs, and judge them as a discovery does."""
    survey = await connections.fetch_declarations(endpoint)
    tools = [item.payload for item in survey.items]
    verdicts = await classify_schemas([tool["inputSchema"] for tool in tools])
    told = {tool["name"]: one.verdict for tool, one in zip(tools, verdicts, strict=True)}
    return " ".join(f"{name}={verdict}" for name, verdict in sorted(told.items()))


def over_http(
    name: str, codes: tuple[str, ...], told: str = "", deadline_s: float = DEADLINE_S, **more: Any
) -> Case:
    return Case(
        name=f"http {name}",
        codes=codes,
        meet=calling("x", deadline_s),
        endpoint=lambda url: http(f"{url}/{name}", era="modern", **more),
        told=told,
        deadline_s=deadline_s,
    )


def over_stdio(
    name: str,
    codes: tuple[str, ...],
    told: str = "",
    deadline_s: float = DEADLINE_S,
    tool: str = "",
    **arguments: Any,
) -> Case:
    return Case(
        name=f"stdio {name}",
        codes=codes,
        meet=calling(tool or name, deadline_s, **arguments),
        endpoint=lambda url: scripted("modern", era="modern"),
        told=told,
        deadline_s=deadline_s,
        warm=True,
    )


def starting(name: str, codes: tuple[str, ...], told: str, *command: str) -> Case:
    async def meet(connections: ConnectionPool, endpoint: ServerEndpoint, holder: str) -> None:
        await connections.perform_handshake(endpoint, holder=holder, timeout_s=LONG_S)

    return Case(
        name=f"stdio start {name}",
        codes=codes,
        meet=meet,
        endpoint=lambda url: stdio(*command, start_s=START_S),
        told=told,
        deadline_s=LONG_S,
    )


def listing(name: str, told: str, codes: tuple[str, ...] = FINE) -> Iterator[Case]:
    yield Case(
        name=f"http list {name}",
        codes=codes,
        meet=surveying(LONG_S),
        endpoint=lambda url: http(f"{url}/{name}", era="modern"),
        told=told,
        deadline_s=LONG_S,
    )
    yield Case(
        name=f"stdio list {name}",
        codes=codes,
        meet=surveying(LONG_S),
        endpoint=lambda url: scripted("modern", name, era="modern"),
        told=told,
        deadline_s=LONG_S,
    )


CASES: tuple[Case, ...] = (
    over_http("hang", LATE),
    over_http("hang_up", GONE, deadline_s=LONG_S),
    over_http("headers_only", LATE),
    over_http("cut_body", GONE, deadline_s=LONG_S),
    over_http("drip_status", (*LATE, *GONE)),
    over_http("drip_headers", LATE),
    over_http("drip_body", LATE),
    over_http("drip_comments", LATE),
    over_http("endless_interim", LATE),
    over_http("endless_header", GONE, deadline_s=LONG_S),
    over_http("endless_body", LARGE, deadline_s=LONG_S),
    over_http("endless_chunks", (*LATE, *LARGE)),
    over_http("endless_events", (*LATE, *LARGE), deadline_s=FLOODED_S),
    over_http("endless_event", LARGE, deadline_s=LONG_S),
    over_http("endless_requests", (*LATE, *LARGE), deadline_s=FLOODED_S),
    over_http("garbage", GONE, deadline_s=LONG_S),
    over_http("garbage_body", BROKEN, "not JSON", deadline_s=LONG_S),
    over_http("garbage_events", (*BROKEN, *GONE), deadline_s=LONG_S),
    over_http("wrong_id", BROKEN, "wasn't requested", deadline_s=LONG_S),
    over_http("text_id", BROKEN, "wasn't requested", deadline_s=LONG_S),
    over_http("repeated_id", FINE, deadline_s=LONG_S),
    over_http("large_body", LARGE, "4,194,304", deadline_s=LONG_S),
    over_http("large_event", LARGE, "4,194,304", deadline_s=LONG_S),
    over_http("gzip", BROKEN, "gzip", deadline_s=LONG_S),
    over_http("nested", BROKEN, "too many values", deadline_s=LONG_S),
    over_http("wide", BROKEN, deadline_s=LONG_S),
    over_http("long_number", BROKEN, deadline_s=LONG_S),
    over_http("not_json", BROKEN, "text/html", deadline_s=LONG_S),
    over_http("no_type", BROKEN, deadline_s=LONG_S),
    over_http("many_headers", GONE, deadline_s=LONG_S),
    over_http("large_header", GONE, deadline_s=LONG_S),
    over_http("broken_header", GONE, deadline_s=LONG_S),
    over_http("two_lengths", GONE, deadline_s=LONG_S),
    over_http("negative_length", GONE, deadline_s=LONG_S),
    over_http("redirect_loop", ("redirect_refused",), "redirect", deadline_s=LONG_S),
    over_http("redirect_inward", ("redirect_refused",), "redirect", deadline_s=LONG_S),
    over_http("large_refusal", ("upstream_error",), "500", deadline_s=LONG_S),
    over_http("large_challenge", ("needs_reauth",), "401", deadline_s=LONG_S),
    replace(
        over_http("good", GONE, "headers can't be sent", headers={"X-Key": "a\r\nHost: elsewhere"}),
        name="http header injection",
    ),
    starting("crash", CRASHED, "status 3", "sh", "-c", "echo no key >&2; exit 3"),
    starting("hang", GONE, f"within {START_S} s", "sleep", "60"),
    starting(
        "garbage", (*GONE, *BROKEN), "", "sh", "-c", "head -c 10000000 /dev/urandom; sleep 60"
    ),
    starting("flood", (*GONE, *CRASHED), "", sys.executable, "-c", "while 1: print('x' * 9**5)"),
    starting("absent", GONE, "no-such-command", "no-such-command"),
    over_stdio("crash", CRASHED, "out of cheese", deadline_s=LONG_S),
    over_stdio("close_output", (*CRASHED, *LATE)),
    over_stdio("hang", LATE),
    over_stdio("block", LATE),
    over_stdio("drip", LATE),
    over_stdio("garbage", FINE, deadline_s=LONG_S),
    over_stdio("broken_json", BROKEN, deadline_s=LONG_S),
    over_stdio("wrong_id", LATE),
    over_stdio("twice", FINE, deadline_s=LONG_S),
    over_stdio("long_line", LARGE, "4,194,304", deadline_s=LONG_S, id_last=True),
    over_stdio("endless_line", (*CRASHED, *LARGE), deadline_s=LONG_S),
    over_stdio("deep", BROKEN, "64", deadline_s=LONG_S),
    over_stdio("wide", BROKEN, deadline_s=LONG_S),
    over_stdio("not_an_object", BROKEN, deadline_s=LONG_S),
    over_stdio("flood", LATE, deadline_s=FLOODED_S),
    over_stdio(
        "flood of questions", LATE, deadline_s=FLOODED_S, tool="flood", asks=True, method="ping"
    ),
    over_stdio("complain_for_ever", LATE, deadline_s=FLOODED_S),
    *listing("many_tools", "", (*FINE, *BROKEN, *LARGE)),
    *listing("many_pages", "more than 1000 definitions"),
    *listing("endless_cursor", "more than 100 pages"),
    *listing("repeated_cursor", "there before"),
    *listing("large_cursor", "", (*FINE, *LARGE)),
    Case(
        name="http bombs in schemas",
        codes=FINE,
        meet=judging,
        endpoint=lambda url: http(f"{url}/bombs", era="modern"),
        told="in-remote=refused",
        deadline_s=LONG_S,
    ),
)
