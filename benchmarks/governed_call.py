"""One governed call and the same call bare, ready to be made over and over, for benchmarks.

Everything is on: rules with a condition, a pinned definition, checked arguments, rate limits,
budgets, flow labels, the durable audit, masking and the scan of the result. The bare call is the
same request through the connections alone; the requested one is the governed call as a modern
client makes it, from the ASGI request to its response. No two calls have the same arguments.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agents.budgets.services import BudgetLine, set_budgets
from agents.calls.pipeline import CallRequest, make_call
from agents.calls.snapshots import get_snapshot_cache
from agents.gateway.transports import GatewayApplication
from agents.models import Agent
from agents.policies.services import PolicySpec, RuleSpec, set_policy
from agents.services import attach_server
from benchmarks.upstream_server import answer, arguments, modern_request
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.models import Definition, Server
from tests import factories
from tests.servers.raw_http_server import RawHttp

NEVER = 1_000_000  # a limit that isn't reached

One = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Door:
    """The calls that are compared."""

    bare: One
    governed: One
    requested: One


@contextmanager
def opened() -> Iterator[Door]:
    """Prepare an organization, an agent and a server that answers at once, in this process."""
    listening = RawHttp(answer).listening()
    http = get_runtime().call(listening.__aenter__)
    try:
        yield _door(http.url)
    finally:
        get_runtime().call(listening.__aexit__, None, None, None)


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


def furnished(url: str) -> tuple[Principal, Agent, Server]:
    """Make an organization whose agent may call the server at `url`, with everything on."""
    acme = factories.create_organization()
    boss = factories.build_administrator(acme)
    agent = factories.create_agent(acme, calls_per_minute=NEVER)
    server = factories.approve_server(acme, factories.create_http_server(acme, url), agent)
    Definition.objects.filter(server=server).update(labels=["private_data"])
    approve_definitions(boss, server)
    attach_server(boss, agent, server)
    never = RuleSpec("mcp_web_echo", {"properties": {"text": {"const": "never"}}})
    set_policy(boss, agent, PolicySpec("all", deny=("mcp_web_other_*", never)))
    set_budgets(boss, agent, [BudgetLine("calls", "month", NEVER)])
    return boss, agent, server


def _door(url: str) -> Door:
    boss, agent, server = furnished(url)
    endpoint = get_snapshot_cache().load("agent", agent.pk).servers[server.pk].endpoint
    numbers = itertools.count()

    async def bare() -> None:
        params = {"name": "echo", "arguments": arguments(next(numbers))}
        await get_connection_pool().send_request(
            endpoint, "tools/call", params, holder="bench:bare"
        )

    async def governed() -> None:
        asked = CallRequest(
            principal=boss,
            tool="mcp_web_echo",
            arguments=arguments(next(numbers)),
            via="bench",
            holder="bench:door",
            agent_id=agent.pk,
        )
        outcome = await make_call(asked)
        assert outcome.outcome == "ok", outcome.text

    return Door(bare, governed, _requested(boss, agent, numbers))


def _requested(boss: Principal, agent: Agent, numbers: Iterator[int]) -> One:
    """Return a function that calls the tool through the gateway's ASGI application."""
    gateway = GatewayApplication()
    _, token = create_token(boss, name="bench", role=Role.OPERATOR, calls_per_minute=NEVER)

    async def requested() -> None:
        headers, body = modern_request("mcp_web_echo", next(numbers), token)
        incoming = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            return incoming.pop() if incoming else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        fields = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        scope: dict[str, Any] = {"type": "http", "method": "POST", "query_string": b""}
        scope |= {"path": f"/mcp/agents/{agent.slug}", "headers": fields}
        scope["client"] = ("127.0.0.1", 1)
        await gateway(scope, receive, send)
        assert sent[0]["status"] == 200, sent

    return requested
