"""Make a governed call, or the same call without the pipeline, repeatedly for benchmarks.

All checks are on: rules with a condition, a pinned definition, argument validation, rate limits,
budgets, flow labels, the durable audit log, masking, and the scan of results. The bare call is the
same request through the connection pool only; the requested one is the governed call of a modern
client, from the ASGI request to the response. Each call has other arguments.
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

Call = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class ComparedCalls:
    """The calls to compare."""

    bare: Call
    governed: Call
    requested: Call


@contextmanager
def prepare_calls() -> Iterator[ComparedCalls]:
    """Create an organization and an agent, and start a server that answers immediately."""
    listening = RawHttp(answer).listening()
    http = get_runtime().call(listening.__aenter__)
    try:
        yield _build_calls(http.url)
    finally:
        get_runtime().call(listening.__aexit__, None, None, None)


async def measure_calls(one: Call, *, calls: int, at_once: int) -> tuple[float, float]:
    """Make calls; return the processor time (of all threads) and wall time per call, in ms."""
    remaining = iter(range(calls))

    async def work() -> None:
        for _ in remaining:
            await one()

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*[work() for _ in range(at_once)])
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return cpu / calls * 1000, wall / calls * 1000


def create_benchmark_agent(url: str) -> tuple[Principal, Agent, Server]:
    """Create an organization whose agent may call the server at `url`, with all checks on."""
    acme = factories.create_organization()
    administrator = factories.build_administrator(acme)
    agent = factories.create_agent(acme, calls_per_minute=NEVER)
    server = factories.approve_server(acme, factories.create_http_server(acme, url), agent)
    Definition.objects.filter(server=server).update(labels=["private_data"])
    approve_definitions(administrator, server)
    attach_server(administrator, agent, server)
    never = RuleSpec("mcp_web_echo", {"properties": {"text": {"const": "never"}}})
    set_policy(administrator, agent, PolicySpec("all", deny=("mcp_web_other_*", never)))
    set_budgets(administrator, agent, [BudgetLine("calls", "month", NEVER)])
    return administrator, agent, server


def _build_calls(url: str) -> ComparedCalls:
    administrator, agent, server = create_benchmark_agent(url)
    endpoint = get_snapshot_cache().load("agent", agent.pk).servers[server.pk].endpoint
    numbers = itertools.count()

    async def bare() -> None:
        params = {"name": "echo", "arguments": arguments(next(numbers))}
        await get_connection_pool().send_request(
            endpoint, "tools/call", params, holder="bench:bare"
        )

    async def governed() -> None:
        request = CallRequest(
            principal=administrator,
            tool="mcp_web_echo",
            arguments=arguments(next(numbers)),
            via="bench",
            holder="bench:governed",
            agent_id=agent.pk,
        )
        outcome = await make_call(request)
        assert outcome.outcome == "ok", outcome.text

    return ComparedCalls(bare, governed, _build_gateway_call(administrator, agent, numbers))


def _build_gateway_call(administrator: Principal, agent: Agent, numbers: Iterator[int]) -> Call:
    """Return a function that calls the tool through the gateway's ASGI application."""
    gateway = GatewayApplication()
    _, token = create_token(administrator, name="bench", role=Role.OPERATOR, calls_per_minute=NEVER)

    async def requested() -> None:
        headers, body = modern_request("mcp_web_echo", next(numbers), token)
        await send_to_gateway(gateway, agent, headers, body)

    return requested


async def send_to_gateway(
    gateway: GatewayApplication, agent: Agent, headers: dict[str, str], body: bytes
) -> bytes:
    """Send a request to the ASGI application of an agent's gateway; return the response's body."""
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
    return b"".join(event.get("body", b"") for event in sent[1:])
