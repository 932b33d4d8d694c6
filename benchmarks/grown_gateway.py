"""A grown organization at the gateway: a discovery, `tools/list`, a governed call from end to end.

A server of one tool is registered among the others, discovered, and bound to the agent beside the
fifty that it has; a web process of its own answers an MCP client over HTTP. In the end the server
is removed, so that the same can be measured again.
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

from benchmarks.bench_gateway import _free_port, _running
from benchmarks.upstream_server import META, arguments
from bonobot.processes.programs import build_web_process
from tests.large_organization import LargeOrganization
from tests.servers.raw_http_server import MODERN

CALLS, LISTS = 50, 5
TOOL = "mcp_bench_echo"


def figures(town: LargeOrganization) -> Iterator[tuple[Any, ...]]:
    """Yield what was measured and how many seconds it took: the first time, and after that."""
    from bonobot.core import runtime
    from bonobot.ledger.writer.writer_thread import close_writer

    upstream, port = _free_port(), _free_port()
    peers = (sys.executable, "-m", "benchmarks.gateway_peers", "upstream", str(upstream))
    web = build_web_process("127.0.0.1", port).command
    with _running(*peers, port=upstream), _furnished(town, upstream) as (took, token):
        yield "discovery of a server", took
        runtime.close_runtime()
        close_writer()
        os.environ.pop("BENCH_GROWTH", None)
        with _running(*web, "--log-level", "warning", port=port), _client(port, token) as client:
            yield from _asked(client, f"/mcp/agents/{town.agent.slug}")


@contextmanager
def _furnished(town: LargeOrganization, port: int) -> Iterator[tuple[float, str]]:
    """Register the server and bind it; yield how long its discovery took, and a token."""
    from agents.services import attach_server
    from benchmarks.governed_call import NEVER
    from bonobot.accounts.roles import Role
    from bonobot.accounts.tokens.services import create_token
    from bonobot.core.runtime import get_runtime
    from mcp_servers.definition_reviews import approve_definitions
    from mcp_servers.discovery import run_discovery
    from mcp_servers.services import delete_server
    from tests import factories

    where = town.organization
    boss = factories.build_administrator(where)
    server = factories.create_http_server(where, f"http://127.0.0.1:{port}/mcp", "bench")
    try:
        began = time.perf_counter()
        get_runtime().call(run_discovery, server.pk, actor=boss.actor)
        took = time.perf_counter() - began
        approve_definitions(boss, server)
        attach_server(boss, town.agent, server)
        type(town.agent).objects.filter(pk=town.agent.pk).update(calls_per_minute=NEVER)
        name = f"bench-{os.getpid()}"
        _, token = create_token(boss, name=name, role=Role.OPERATOR, calls_per_minute=NEVER)
        yield took, token
    finally:
        delete_server(boss, server)


def _client(port: int, token: str) -> httpx2.Client:
    headers = {
        "Accept": "application/json, text/event-stream",
        "Authorization": f"Bearer {token}",
        "MCP-Protocol-Version": MODERN,
    }
    return httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60)


def _asked(client: httpx2.Client, path: str) -> Iterator[tuple[Any, ...]]:
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
        said = ask("tools/call", name=TOOL, arguments=arguments(next(numbers)))
        if "It is warm" not in said["content"][0]["text"]:
            raise SystemExit(f"it answered {said}")

    for title, what, times in (
        ("tools/list at the gateway", listed, LISTS),
        ("a governed call over HTTP, from end to end", called, CALLS),
    ):
        yield title, _timed(what), median(_timed(what) for _ in range(times))


def _timed(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began
