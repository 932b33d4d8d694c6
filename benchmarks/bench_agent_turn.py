"""Compare a session with a bare pydantic-ai `Agent` that does the same.

    make bench            (this among others)
    .venv/bin/python -m pytest -n0 -s -q benchmarks/bench_agent_turn.py

A task is two requests to a model, which asks for two calls at once and then answers. The model
(OpenAI's protocol, streamed) and the MCP server answer immediately, in a process of their own, so
only the processor time of this one is measured: that of all threads. The bare agent calls the
server through one open client of the SDK and stores nothing. The session has everything on: a
policy with a condition, budgets, the durable audit log, and its steps in the database of
`DATABASE_URL`, else SQLite. Rounds of both alternate; `BENCH_TASKS` of them run at once in a round.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from statistics import median

import pytest
from django.db import connection
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from pydantic_ai import Agent as BareAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from rich.console import Console
from rich.table import Table

from agents.models import Agent, Session
from agents.sessions.services import start_session
from agents.sessions.worker import SessionRunner
from benchmarks.bench_gateway import find_free_port, run_process
from benchmarks.bench_sessions import create_agent
from bonobot.accounts.principals import Principal
from bonobot.core.runtime import get_runtime
from bonobot.ledger.writer.writer_thread import get_writer
from tests import factories
from tests.servers.raw_http_server import MODERN

TASKS = int(os.environ.get("BENCH_TASKS", "1"))
ROUNDS = 40
RATIO_BAR = 1.3
TOOL = "mcp_web_look_up"

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_turn_with_two_calls() -> None:
    model, server = find_free_port(), find_free_port()
    words = (sys.executable, "-m", "benchmarks.session_peers", str(model), str(server))
    with run_process(*words, port=server), _start_runner() as runner:
        agent = create_agent(model, f"http://127.0.0.1:{server}/mcp")
        administrator = factories.build_administrator(agent.organization)
        bare, sessions = get_runtime().call(
            _measure_rounds, (model, server), administrator, agent, runner
        )
    table = Table(title=f"Processor ms per task, {TASKS} at once, on {connection.vendor}")
    for title in ("", "best", "median"):
        table.add_column(title, justify="right" if title else "left")
    for name, costs in (("bare agent", bare), ("session", sessions)):
        table.add_row(name, f"{min(costs):.1f}", f"{median(costs):.1f}")
    ratios = min(sessions) / min(bare), median(sessions) / median(bare)
    table.add_row("ratio", *(f"{ratio:.2f}" for ratio in ratios))
    Console(width=100).print(table, f"Load {os.getloadavg()[0]:.1f}; required: {RATIO_BAR}")


async def _measure_rounds(
    ports: tuple[int, int], administrator: Principal, agent: Agent, runner: SessionRunner
) -> tuple[list[float], list[float]]:
    """Return the ms of processor time per task of the bare agent, and of sessions."""
    model, server = ports
    bare: list[float] = []
    sessions: list[float] = []
    provider = OpenAIProvider(base_url=f"http://127.0.0.1:{model}/v1", api_key="none")
    bare_agent = BareAgent(
        OpenAIChatModel("slow-1", provider=provider), instructions="Answer briefly."
    )

    async with Client(
        streamable_http_client(f"http://127.0.0.1:{server}/mcp"), mode=MODERN
    ) as client:

        @bare_agent.tool_plain(name=TOOL)
        async def look_up(text: str, limit: int) -> str:
            """Look something up."""
            result = await client.call_tool("look_up", {"text": text, "limit": limit})
            return str(result.content[0].text)  # type: ignore[union-attr]

        async def read_events(_: object, events: object) -> None:
            async for _event in events:  # type: ignore[attr-defined]
                pass

        async def run_bare() -> None:
            result = await bare_agent.run("How is it?", event_stream_handler=read_events)
            assert "Ulm" in result.output, result.output

        async def run_session() -> None:
            session = await get_runtime().run_orm(start_session, administrator, agent, "How is it?")
            task = await runner.claim_and_run(session.pk)
            assert task is not None
            await task

        for number in range(ROUNDS + 5):
            for costs, run in ((bare, run_bare), (sessions, run_session)):
                cost = await _measure_round(run)
                if number >= 5:  # the first ones warm
                    costs.append(cost)
    states = await get_runtime().run_orm(
        lambda: set(Session.objects.values_list("status", "turns"))
    )
    assert states == {(Session.Status.DONE, 2)}, states
    return bare, sessions


async def _measure_round(run: Callable[[], Awaitable[None]]) -> float:
    started_at = time.process_time()
    await asyncio.gather(*[run() for _ in range(TASKS)])
    return (time.process_time() - started_at) / TASKS * 1000


@contextmanager
def _start_runner() -> Iterator[SessionRunner]:
    runner = SessionRunner()
    try:
        yield runner
    finally:
        get_runtime().call(runner.drain)
        get_runtime().close()
        get_writer().close()
