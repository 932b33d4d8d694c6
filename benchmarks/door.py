"""One governed call and the same call bare, ready to be made over and over: for `bench_door`.

Everything is on: rules with a condition, a pinned definition, checked arguments, rate limits,
budgets, flow labels, the durable audit, masking and the scan of the result. The bare call is the
same request through the connections alone. No two calls have the same arguments.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agents.bindings import bind
from agents.budgets import BudgetLine, set_budgets
from agents.calls import Request, call
from agents.governance.snapshots import snapshots
from agents.tool_policies import PolicyText, RuleText, set_policy
from bonobot.lib.runtime import runtime
from mcp_servers.approval import approve
from mcp_servers.connections.pool import connections
from mcp_servers.models import Definition
from tests.agents import casting
from tests.servers import raw_http
from tests.servers.raw_http import Asked, RawHttp

NEVER = 1_000_000  # a limit that isn't reached
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 1000},
        "note": {"type": "string"},
        "count": {"type": "integer", "minimum": 0},
        "where": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    "required": ["text"],
}
SAID = {"content": [{"type": "text", "text": "It is warm. " * 40}]}

One = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Door:
    """The two calls that are compared."""

    bare: One
    governed: One


@contextmanager
def opened() -> Iterator[Door]:
    """Prepare an organization, an agent and a server that answers at once, in this process."""
    listening = RawHttp(_answer).listening()
    http = runtime().call(listening.__aenter__)
    try:
        yield _door(http.url)
    finally:
        runtime().call(listening.__aexit__, None, None, None)


async def spent(one: One, *, calls: int, at_once: int) -> tuple[float, float]:
    """Make calls; return processor time (of all threads) and wall time of each, in ms."""
    left = iter(range(calls))

    async def work() -> None:
        for _ in left:
            await one()

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*[work() for _ in range(at_once)])
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return cpu / calls * 1000, wall / calls * 1000


def _answer(asked: Asked) -> bytes:
    if asked.method == "server/discover":
        return raw_http.discovery(asked)
    listed = {"tools": [{"name": "echo", "inputSchema": SCHEMA}]}
    return raw_http.result(asked, listed if asked.method == "tools/list" else SAID)


def _door(url: str) -> Door:
    acme = casting.organization()
    boss = casting.administrator(acme)
    agent = casting.agent(acme, calls_per_minute=NEVER)
    server = casting.ready(acme, casting.http_server(acme, url), agent)
    Definition.objects.filter(server=server).update(labels=["private_data"])
    approve(boss, server)
    bind(boss, agent, server)
    never = RuleText("mcp_web_echo", {"properties": {"text": {"const": "never"}}})
    set_policy(boss, agent, PolicyText("all", deny=("mcp_web_other_*", never)))
    set_budgets(boss, agent, [BudgetLine("calls", "month", NEVER)])
    endpoint = snapshots().read("agent", agent.pk).servers[server.pk].endpoint
    numbers = itertools.count()

    def arguments() -> dict[str, Any]:
        number = next(numbers)
        text = f"the quick brown fox number {number}"
        return {"text": text, "note": "x" * 200, "count": number, "where": {"city": "Ulm"}}

    async def bare() -> None:
        params = {"name": "echo", "arguments": arguments()}
        await connections().request(endpoint, "tools/call", params, holder="bench:bare")

    async def governed() -> None:
        asked = Request(
            principal=boss,
            tool="mcp_web_echo",
            arguments=arguments(),
            via="bench",
            holder="bench:door",
            agent_id=agent.pk,
        )
        outcome = await call(asked)
        assert outcome.outcome == "ok", outcome.text

    return Door(bare, governed)
