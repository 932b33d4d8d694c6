"""Measure `resources/read` at the gateway, and a call of a tool beside it.

    make bench            (this among others)
    .venv/bin/python -m pytest -n0 -s -q benchmarks/bench_requests.py

Requests go from ASGI to the response in this process, on the database of `DATABASE_URL`, else on
SQLite. Processor time is that of all threads of the process, and includes the server, which answers
on the same loop. The table has the best and the median round, because other load on the machine
makes rounds slower.
"""

import asyncio
import itertools
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import pytest
from django.db import connection
from rich.console import Console
from rich.table import Table

from agents.gateway.transports import GatewayApplication
from agents.models import Agent
from agents.services import attach_server
from benchmarks.governed_call import NEVER, measure_calls
from benchmarks.upstream_server import META, SAID, SCHEMA, arguments
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core.runtime import get_runtime
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.effective_labels import set_labels
from tests import factories
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest

CONCURRENCY = (1, 8)
CALLS, ROUNDS = 100, 8
URI = "test://text"
RESOURCE = {"contents": [{"uri": URI, "mimeType": "text/plain", "text": "It is warm. " * 40}]}

pytestmark = pytest.mark.django_db(transaction=True)

Call = Callable[[], Awaitable[Any]]


def test_the_cost_of_resources_read() -> None:
    table = _build_table("request", "at once")
    with _open_gateway() as (agent, token):
        numbers = itertools.count()
        calls: dict[str, Call] = {
            "tools/call": lambda: send_request(
                agent, token, "tools/call", name="mcp_web_echo", arguments=arguments(next(numbers))
            ),
            "resources/read": lambda: send_request(
                agent, token, "resources/read", uri=f"web+{URI}"
            ),
        }
        for concurrency in CONCURRENCY:
            rounds: dict[str, list[float]] = {name: [] for name in calls}
            for number in range(ROUNDS + 1):
                for name, call in calls.items():
                    cost = _measure(call, calls=CALLS, at_once=concurrency)
                    if number:  # the first round warms
                        rounds[name].append(cost)
            for name, costs in rounds.items():
                table.add_row(name, str(concurrency), *_format_costs(costs))
    Console(width=100).print(table)


@contextmanager
def _open_gateway() -> Iterator[tuple[Agent, str]]:
    """Start a server, and create an agent that may use it and a token for its endpoint."""
    acme = factories.create_organization()
    administrator = factories.build_administrator(acme)
    agent = factories.create_agent(acme, calls_per_minute=NEVER)
    http = RawHttp(_answer)
    listening = http.listening()
    get_runtime().call(listening.__aenter__)
    server = factories.approve_server(acme, factories.create_http_server(acme, http.url))
    attach_server(administrator, agent, server, allowed_resources=[URI])
    # Without labels, a call after the first one needs an approval.
    set_labels(administrator, server, list(server.definitions.all()), [FlowLabel.PRIVATE_DATA])
    _, token = create_token(administrator, name="bench", role=Role.OPERATOR, calls_per_minute=NEVER)
    try:
        yield agent, token
    finally:
        get_runtime().call(listening.__aexit__, None, None, None)
        get_writer().close()


def _answer(asked: RecordedRequest) -> bytes:
    results: dict[str, Any] = {
        "server/discover": {
            "supportedVersions": [raw_http_server.MODERN],
            "capabilities": {"tools": {}, "resources": {}},
        },
        "tools/list": {"tools": [{"name": "echo", "inputSchema": SCHEMA}]},
        "resources/list": {"resources": [{"uri": URI, "name": "text"}]},
        "resources/read": RESOURCE,
    }
    return raw_http_server.result(asked, results.get(asked.method, SAID))


_gateways: dict[str, GatewayApplication] = {}


async def send_request(agent: Agent, token: str, method: str, **params: Any) -> dict[str, Any]:
    """Send a modern request to the gateway's ASGI application; return its result."""
    gateway = _gateways.setdefault(agent.slug, GatewayApplication())
    meta = {
        f"{META}protocolVersion": raw_http_server.MODERN,
        f"{META}clientInfo": {"name": "bench", "version": "1"},
        f"{META}clientCapabilities": {},
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    body = json.dumps(message).encode()
    headers = {
        "host": "127.0.0.1",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "mcp-protocol-version": raw_http_server.MODERN,
        "mcp-method": method,
        "mcp-name": params.get("name") or params["uri"],
        "authorization": f"Bearer {token}",
    }
    incoming = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return incoming.pop() if incoming else await asyncio.Event().wait()

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/mcp/agents/{agent.slug}",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
    }
    await gateway(scope, receive, send)
    answer = json.loads(b"".join(event.get("body", b"") for event in sent[1:]))
    assert "result" in answer, answer
    assert not answer["result"].get("isError"), answer
    result: dict[str, Any] = answer["result"]
    return result


def _measure(call: Call, *, calls: int, at_once: int) -> float:
    """Return the processor time of a call in ms."""
    return get_runtime().call(measure_calls, call, calls=calls, at_once=at_once)[0]


def _format_costs(costs: list[float]) -> tuple[str, ...]:
    return f"{min(costs):.2f}", f"{median(costs):.2f}", f"{max(costs):.2f}"


def _build_table(*titles: str) -> Table:
    load = os.getloadavg()[0]
    table = Table(title=f"Processor ms per request on {connection.vendor}, load {load:.1f}")
    for title in (*titles, "best", "median", "most"):
        table.add_column(title, justify="left" if title in titles[:1] else "right")
    return table
