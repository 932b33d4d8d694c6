"""What a governed call costs over a bare one of the same connection, in processor time.

    make bench            (this among others)
    .venv/bin/python -m benchmarks.bench_door

Everything is on: rules with a condition, a pinned definition, checked arguments, rate limits,
budgets, flow labels, the durable audit, masking and the scan of the result. The bare call is the
same request through the connections alone, in the same run and process. Processor time is that of
this process, all threads: PostgreSQL's own work and the server's aren't in it. The machine's load
stands beside the figures, since a busy one makes every figure larger.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.databases import on_each

CONCURRENCY = (1, 8)
CALLS = 120
ROUNDS = 3
NEVER = 1_000_000  # a limit that isn't reached
ARGUMENTS = {"text": "the quick brown fox", "note": "x" * 200, "count": 3, "where": {"city": "Ulm"}}

One = Callable[[], Awaitable[Any]]


async def spent(one: One, at_once: int) -> tuple[float, float]:
    """Make calls; return processor and wall time of each, in ms."""
    left = iter(range(CALLS))

    async def work() -> None:
        for _ in left:
            await one()

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*[work() for _ in range(at_once)])
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return cpu / CALLS * 1000, wall / CALLS * 1000


def prepared() -> tuple[One, One, Callable[[], Any]]:
    """Return a bare call, the same through the door, and what ends the server."""
    from agents.bindings import bind
    from agents.budgets import BudgetLine, set_budgets
    from agents.calls import Request, call
    from agents.governance.snapshots import snapshots
    from agents.tool_policies import PolicyText, RuleText, set_policy
    from bonobot.lib.runtime import runtime
    from mcp_servers.approval import approve
    from mcp_servers.connections.pool import connections
    from mcp_servers.models import Definition, Server
    from tests.agents import casting
    from tests.servers import raw_http
    from tests.servers.raw_http import Asked, RawHttp

    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string", "maxLength": 1000},
            "note": {"type": "string"},
            "count": {"type": "integer", "minimum": 0},
            "where": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
        "required": ["text"],
    }
    said = {"content": [{"type": "text", "text": "It is warm. " * 40}]}

    def answer(asked: Asked) -> bytes:
        if asked.method == "server/discover":
            return raw_http.discovery(asked)
        listed = {"tools": [{"name": "echo", "inputSchema": schema}]}
        return raw_http.result(asked, listed if asked.method == "tools/list" else said)

    listening = RawHttp(answer).listening()
    http = runtime().call(listening.__aenter__)
    acme = casting.organization()
    boss = casting.administrator(acme)
    agent = casting.agent(acme, calls_per_minute=NEVER)
    server: Server = casting.ready(acme, casting.http_server(acme, http.url), agent)
    Definition.objects.filter(server=server).update(labels=["private_data"])
    approve(boss, server)
    bind(boss, agent, server)
    never = RuleText("mcp_web_echo", {"properties": {"text": {"const": "never"}}})
    rules = PolicyText("all", deny=("mcp_web_other_*", never))
    set_policy(boss, agent, rules)
    set_budgets(boss, agent, [BudgetLine("calls", "month", NEVER)])
    endpoint = snapshots().read("agent", agent.pk).servers[server.pk].endpoint

    async def bare() -> None:
        params = {"name": "echo", "arguments": dict(ARGUMENTS)}
        await connections().request(endpoint, "tools/call", params, holder="bench:bare")

    async def governed() -> None:
        asked = Request(
            principal=boss,
            tool="mcp_web_echo",
            arguments=dict(ARGUMENTS),
            via="bench",
            holder="bench:door",
            agent_id=agent.pk,
        )
        outcome = await call(asked)
        assert outcome.outcome == "ok", outcome.text

    return bare, governed, lambda: runtime().call(listening.__aexit__, None, None, None)


def measure() -> None:
    """Measure on this process's database; print a line for each concurrency."""
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    from bonobot.ledger.writer import close
    from bonobot.lib.runtime import runtime

    bare, governed, end = prepared()
    for at_once in CONCURRENCY:
        rounds = []
        for _ in range(ROUNDS):
            without, _wall = runtime().call(spent, bare, at_once)
            through, wall = runtime().call(spent, governed, at_once)
            rounds.append((through - without, without, through, wall))
        added, without, through, wall = sorted(rounds)[ROUNDS // 2]
        load = os.getloadavg()[0]
        figures = (without, through, added, wall, load)
        sys.stdout.write(" ".join([str(at_once), *[f"{one:.2f}" for one in figures]]) + "\n")
        sys.stdout.flush()
    end()
    close()


def test_a_call_through_the_door() -> None:
    main()


def main() -> None:
    """Measure what there is and print one table."""
    table = Table(title="The door: processor ms per call (median of three rounds)")
    titles = ("database", "at once", "bare", "governed", "added", "wall ms", "load")
    for title in titles:
        table.add_column(title, justify="left" if title == "database" else "right")
    console = Console()
    for name, lines in on_each(__file__, console):
        for line in lines:
            table.add_row(name, *line)
    console.print(table)


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["measure"] else main()
