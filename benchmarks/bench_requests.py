"""Measure `resources/read` at the gateway, and a call of a tool beside it.

    make bench            (this among others)
    .venv/bin/python -m pytest -n0 -s -q benchmarks/bench_requests.py

Requests go from ASGI to the response in this process, on the database of `DATABASE_URL`, else on
SQLite. Processor time is that of all threads of the process, and includes the server, which answers
on the same loop. The table has the best and the median round, because other load on the machine
makes rounds slower.
"""

import itertools
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import pytest
from django.db import connection
from rich.console import Console
from rich.table import Table

from agents.gateway.transports import GatewayApplication
from agents.models import Agent
from agents.services import attach_server
from benchmarks.governed_call import NEVER, measure_calls, send_to_gateway
from benchmarks.upstream_server import SAID, SCHEMA, arguments, build_modern_request
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
        request = partial(send_request, GatewayApplication(), agent, token)
        calls: dict[str, Call] = {
            "tools/call": lambda: request(
                "tools/call", name="mcp_web_echo", arguments=arguments(next(numbers))
            ),
            "resources/read": lambda: request("resources/read", uri=f"web+{URI}"),
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


async def send_request(
    gateway: GatewayApplication, agent: Agent, token: str, method: str, **params: Any
) -> None:
    """Send a modern request to the gateway, which has to return a result without an error."""
    name = params.get("name") or params["uri"]
    headers, body = build_modern_request(method, name, params, token=token)
    answer = json.loads(await send_to_gateway(gateway, agent, headers, body))
    assert "result" in answer, answer
    assert not answer["result"].get("isError"), answer


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
