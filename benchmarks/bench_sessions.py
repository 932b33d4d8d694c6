"""Sessions of one worker process: 200 that wait on a slow model, and what a realistic one costs.

    make bench            (this among others)
    .venv/bin/python -m pytest -n0 -s -q benchmarks/bench_sessions.py

The worker is a Celery process of its own, warm: it has run a session before. The model and the
server that the sessions ask live in this process, so their work isn't counted; the model's wire is
OpenAI's, streamed in fifty pieces. With `DATABASE_URL` and `REDIS_URL` it is measured on PostgreSQL
and Redis, whose own processor time isn't counted; else on SQLite and the filesystem broker.

A realistic session is three model turns with two parallel calls in each of the first two, under a
budget of tokens, one of calls and a policy with a condition. `BENCH_SESSIONS` of them run at once
(default 200).
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from django.apps import apps
from django.db import connection

from agents.budgets.services import BudgetLine, set_budgets
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Agent, Session
from agents.policies.services import PolicySpec, RuleSpec, set_policy
from agents.sessions.services import start_session
from benchmarks.session_peers import serve_tool, stream_reply
from bonobot.core.runtime import get_runtime
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.effective_labels import set_labels
from tests import factories, processes
from tests.servers.raw_http_server import RawHttp, RecordedRequest
from tests.wait import eventually

SESSIONS = int(os.environ.get("BENCH_SESSIONS", "200"))
MODEL_S = 1.0
BAR_S, BAR_MB, BAR_MS = 4.0, 300, 40
NEVER = 10**9  # a limit that isn't reached
pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class SlowModel(RawHttp):
    """A provider that answers each request after `wait_s`, over connections that are kept."""

    respond: Callable[[RecordedRequest], bytes] = field(default=lambda asked: stream_reply(asked))
    wait_s: float = MODEL_S

    async def _answer(
        self, asked: RecordedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await asyncio.sleep(self.wait_s)
        await super()._answer(asked, reader, writer)


@dataclass(frozen=True)
class Stage:
    """A worker, an agent that it runs, and the model that the agent asks."""

    worker: processes.Process
    agent: Agent
    model: SlowModel

    def start_sessions(self, count: int) -> list[Session]:
        """Start sessions while the worker stands still, so that all wait for it at once."""
        administrator = factories.build_administrator(self.agent.organization)
        os.kill(self.worker.pid, signal.SIGSTOP)
        try:
            return [
                start_session(administrator, self.agent, f"How is the weather? {n}")
                for n in range(count)
            ]
        finally:
            os.kill(self.worker.pid, signal.SIGCONT)


def test_sessions_that_wait_on_a_slow_model(tmp_path: Path) -> None:
    with start_stage(tmp_path, turns_with_calls=0) as stage:
        idle_mb = measure_memory_mb(stage.worker.pid)
        took_s, spent_s = wait_for_sessions(stage, stage.start_sessions(SESSIONS))
        peak_mb = measure_memory_mb(stage.worker.pid, peak=True)
    _print_figures(
        f"{SESSIONS} sessions, each waiting {MODEL_S:g} s on its model, {connection.vendor}: "
        f"{took_s:.1f} s (bar {BAR_S:g} s), {spent_s * 1000 / SESSIONS:.1f} ms of processor time "
        f"each; memory {idle_mb:.0f} MB warm, at most {peak_mb:.0f} MB (bar {BAR_MB} MB)"
    )


def test_realistic_sessions(tmp_path: Path) -> None:
    with start_stage(tmp_path, turns_with_calls=2) as stage:
        before = count_rows()
        took_s, spent_s = wait_for_sessions(stage, stage.start_sessions(SESSIONS))
        written = {name: count - before[name] for name, count in count_rows().items()}
    each = {name: count / SESSIONS for name, count in written.items() if count > 0}
    _print_figures(
        f"{SESSIONS} sessions of 3 turns and 4 calls, {connection.vendor}: "
        f"{spent_s * 1000 / SESSIONS:.1f} ms of processor time each (bar {BAR_MS} ms), "
        f"{took_s:.1f} s; load {os.getloadavg()[0]:.1f}; rows of one: {sum(each.values()):.0f} ("
        + ", ".join(f"{name} {count:.0f}" for name, count in sorted(each.items()))
        + ")"
    )


@contextmanager
def start_stage(folder: Path, *, turns_with_calls: int) -> Iterator[Stage]:
    """Start a model and a server on this process's loop, and a warm worker."""
    model = SlowModel(lambda request: stream_reply(request, turns_with_calls), wait_s=0.0)
    server = RawHttp(serve_tool)
    opened = [item.listening() for item in (model, server)]
    for item in opened:
        get_runtime().call(item.__aenter__)
    agent = create_agent(model.port, server.url)
    worker = processes.start_worker(folder, "worker", {"BONOBOT_WORKER_THREADS": "16"})
    try:
        stage = Stage(worker, agent, model)
        wait_for_sessions(stage, stage.start_sessions(3))
        model.wait_s = 0.0 if turns_with_calls else MODEL_S
        yield stage
    finally:
        worker.kill()
        for item in opened:
            get_runtime().call(item.__aexit__, None, None, None)
        get_runtime().close()
        get_writer().close()


def wait_for_sessions(stage: Stage, sessions: list[Session]) -> tuple[float, float]:
    """Wait until the sessions are done; return what it took: wall and processor time, seconds."""
    started_at, processor_time = time.perf_counter(), measure_processor_s(stage.worker.pid)
    own = Session.objects.filter(pk__in=[item.pk for item in sessions])
    eventually(
        lambda: not own.unfinished().exists(), within=120, every=0.02, what="the sessions' end"
    )
    took_s, processor_time = (
        time.perf_counter() - started_at,
        measure_processor_s(stage.worker.pid) - processor_time,
    )
    stage.worker.require()
    assert set(own.values_list("status", flat=True)) == {Session.Status.DONE}, stage.worker.log()
    return took_s, processor_time


def count_rows() -> dict[str, int]:
    """Return how many rows each table of ours has."""
    ours = [item for item in apps.get_models() if item.__module__.partition(".")[0] in OURS]
    return {item.__name__: item._default_manager.count() for item in ours}


OURS = ("agents", "bonobot", "mcp_servers")


def create_agent(model_port: int, server_url: str) -> Agent:
    acme = factories.create_organization()
    administrator = factories.build_administrator(acme)
    save_endpoint(
        administrator,
        ModelEndpointSpec(
            name="Slow",
            kind="openai",
            base_url=f"http://127.0.0.1:{model_port}/v1",
            model="slow-1",
            allow_private=True,
        ),
    )
    agent = factories.create_agent(
        acme, calls_per_minute=NEVER // 1000, instructions="Answer briefly."
    )
    server = factories.create_http_server(acme, server_url)
    factories.approve_server(acme, server, agent)
    # Without labels, a call after the first one needs an approval.
    set_labels(administrator, server, list(server.definitions.all()), [FlowLabel.UNTRUSTED_CONTENT])
    never = RuleSpec("mcp_web_look_up", {"properties": {"text": {"const": "never"}}})
    set_policy(administrator, agent, PolicySpec("all", deny=(never,)))
    lines = [BudgetLine("tokens", "month", NEVER), BudgetLine("calls", "month", NEVER)]
    set_budgets(administrator, agent, lines)
    return agent


def measure_processor_s(pid: int) -> float:
    """Return the processor time of a process, all its threads, in seconds (Linux)."""
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, after_name[11:13])) / os.sysconf("SC_CLK_TCK")


def measure_memory_mb(pid: int, *, peak: bool = False) -> float:
    """Return the memory of a process, or the most that it ever had, in MB (resident; Linux)."""
    texts = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    expected = "VmHWM:" if peak else "VmRSS:"
    return next(int(line.split()[1]) for line in texts if line.startswith(expected)) / 1024


def _print_figures(line: str) -> None:
    sys.stdout.write(f"\n{line}\n")
