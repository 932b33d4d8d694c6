"""Measure the gateway of a large organization: a discovery, `tools/list`, and a governed call.

A server with one tool is registered, discovered, and attached to an agent with fifty other servers.
A separate web process answers an MCP client over HTTP. The server is deleted afterwards, so that
the measurement can be repeated.
"""

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import httpx2

from benchmarks.bench_gateway import find_free_port, run_process
from benchmarks.upstream_server import META, arguments
from bonobot.processes.programs import build_web_process
from tests.large_organization import LargeOrganization
from tests.servers.raw_http_server import MODERN

CALLS, LISTS = 50, 5
TOOL = "mcp_bench_echo"


def measure_gateway(town: LargeOrganization) -> Iterator[tuple[Any, ...]]:
    """Yield titles with the seconds of the first time, and of later ones."""
    from bonobot.core import runtime
    from bonobot.ledger.writer.writer_thread import close_writer

    upstream, port = find_free_port(), find_free_port()
    peers = (sys.executable, "-m", "benchmarks.gateway_peers", "upstream", str(upstream))
    web = build_web_process("127.0.0.1", port).command
    with (
        run_process(*peers, port=upstream),
        create_discovered_server(town, upstream) as (elapsed, token),
    ):
        yield "discovery of a server", elapsed
        runtime.close_runtime()
        close_writer()
        os.environ.pop("BENCH_GROWTH", None)
        with (
            run_process(*web, "--log-level", "warning", port=port),
            build_client(port, token) as client,
        ):
            yield from measure_requests(client, f"/mcp/agents/{town.agent.slug}")


@contextmanager
def create_discovered_server(town: LargeOrganization, port: int) -> Iterator[tuple[float, str]]:
    """Register and attach the server; yield the seconds of its discovery, and a token."""
    from agents.services import attach_server
    from benchmarks.governed_call import NEVER
    from bonobot.accounts.roles import Role
    from bonobot.accounts.tokens.services import create_token
    from bonobot.core.runtime import get_runtime
    from mcp_servers.definition_reviews import approve_definitions
    from mcp_servers.discovery import run_discovery
    from mcp_servers.models import Definition
    from mcp_servers.services import delete_server
    from tests import factories

    organization = town.organization
    administrator = factories.build_administrator(organization)
    server = factories.create_http_server(organization, f"http://127.0.0.1:{port}/mcp", "bench")
    try:
        started_at = time.perf_counter()
        get_runtime().call(run_discovery, server.pk, actor=administrator.actor)
        elapsed = time.perf_counter() - started_at
        approve_definitions(administrator, server)
        # As in `governed_call`: with an external effect, its second call would need an approval.
        Definition.objects.filter(server=server).update(labels=["private_data"])
        attach_server(administrator, town.agent, server)
        type(town.agent).objects.filter(pk=town.agent.pk).update(calls_per_minute=NEVER)
        name = f"bench-{os.getpid()}"
        _, token = create_token(
            administrator, name=name, role=Role.OPERATOR, calls_per_minute=NEVER
        )
        yield elapsed, token
    finally:
        delete_server(administrator, server)


def build_client(port: int, token: str) -> httpx2.Client:
    headers = {
        "Accept": "application/json, text/event-stream",
        "Authorization": f"Bearer {token}",
        "MCP-Protocol-Version": MODERN,
    }
    return httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60)


def measure_requests(client: httpx2.Client, path: str) -> Iterator[tuple[Any, ...]]:
    numbers = itertools.count()
    meta = {
        f"{META}protocolVersion": MODERN,
        f"{META}clientInfo": {"name": "bench", "version": "1"},
        f"{META}clientCapabilities": {},
    }

    def ask(method: str, **params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": next(numbers), "method": method}
        named = {"Mcp-Name": params["name"]} if "name" in params else {}
        answer = client.post(
            path,
            json=body | {"params": params | {"_meta": meta}},
            headers={"Mcp-Method": method, **named},
        )
        return answer.json()["result"]

    def listed() -> None:
        more: dict[str, str] = {}
        while cursor := ask("tools/list", **more).get("nextCursor"):
            more = {"cursor": cursor}

    def called() -> None:
        text = ask("tools/call", name=TOOL, arguments=arguments(next(numbers)))
        if "It is warm" not in text["content"][0]["text"]:
            raise SystemExit(f"it answered {text}")

    for title, what, times in (
        ("tools/list at the gateway", listed, LISTS),
        ("a governed call over HTTP, from end to end", called, CALLS),
    ):
        yield title, measure_seconds(what), median(measure_seconds(what) for _ in range(times))


def measure_seconds(what: Callable[[], object]) -> float:
    started_at = time.perf_counter()
    what()
    return time.perf_counter() - started_at
