"""Measure how long a session is interrupted when its worker ends.

    make bench            (this among others)
    .venv/bin/python -m pytest -n0 -s -q benchmarks/bench_recovery.py

Two workers and a scheduler run as in an installation, and a session waits for a call. Its worker is
ended, and the time until another one has leased the session is measured.

- `killed`: with SIGKILL. The other worker proves that the process has ended.
- `stopped`: with SIGTERM. Calls get no time to finish (`BONOBOT_DRAIN_S`).
- `alone`: the only worker is killed, and the one that is started then finds the session.
- `up`: the same, and `bonobot up` starts the new one.

`DATABASE_URL` and `REDIS_URL` choose where it is measured.
"""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

import pytest
from django.db import connection

from agents.models import Agent, Runner, Session
from agents.sessions import services as sessions
from bonobot.processes.supervisor import RestartPolicy
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.effective_labels import set_labels
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories, processes
from tests.agents.conftest import WORKSHOP
from tests.processes import Process
from tests.wait import eventually

KILLS = 10
BARS_S = {"killed": 5.0, "stopped": 2.0, "alone": 10.0, "up": 5.0}

pytestmark = pytest.mark.django_db(transaction=True)


def start_beat(folder: Path) -> Process:
    command = [sys.executable, "-m", "celery", "--app", "bonobot", "beat", "--pidfile="]
    return processes.start_process(
        "beat", command, folder=folder, env=processes.build_environment()
    )


def start_up(folder: Path) -> Process:
    port = str(processes.find_unused_port())
    command = [sys.executable, "-m", "bonobot", "up", "--port", port]
    return processes.start_process("up", command, folder=folder, env=processes.build_environment())


def create_agent() -> Agent:
    """Create an agent with a repeatable tool."""
    acme = factories.create_organization()
    administrator = factories.build_administrator(acme)
    agent = factories.create_agent(acme)
    config = {"command": sys.executable, "args": [str(WORKSHOP), "stdio"]}
    spec = ServerSpec(name="workshop", transport_type="stdio", endpoint_config=config)
    server = factories.approve_server(acme, create_server(administrator, spec), agent)
    set_labels(administrator, server, list(server.definitions.all()), [FlowLabel.REPEATABLE])
    return agent


def start_session(agent: Agent) -> Session:
    """Start a session whose call takes an hour."""
    administrator = factories.build_administrator(agent.organization)
    return sessions.start_session(administrator, agent, '/mcp_workshop_wait {"seconds": 3600}')


def find_runner(session: Session) -> tuple[int, int] | None:
    """Return the fence and process ID of the session's runner, or None if there is none."""
    session.refresh_from_db()
    runner = Runner.objects.filter(pk=session.runner_id).first() if session.runner_id else None
    return (session.fence, runner.pid) if runner else None


@pytest.mark.parametrize("ended", BARS_S)
def test_a_session_continues_when_its_worker_ends(tmp_path: Path, ended: str) -> None:
    count = {"alone": 1, "up": 0}.get(ended, 2)
    start = partial(processes.start_worker, tmp_path, extra={"BONOBOT_DRAIN_S": "0"})
    workers = {one.pid: one for one in (start(f"w{n}") for n in range(count))}
    ticking = start_up(tmp_path) if ended == "up" else start_beat(tmp_path)
    elapsed = []
    try:
        agent = create_agent()
        for number in range(KILLS):
            session = start_session(agent)
            fence, pid = eventually(partial(find_runner, session), within=60)
            eventually(session.steps.filter(kind="call").exists, within=60)
            workers.pop(pid, None)
            os.kill(pid, signal.SIGTERM if ended == "stopped" else signal.SIGKILL)
            ended_at = time.perf_counter()

            def find_new_runner(
                session: Session = session, previous_fence: int = fence
            ) -> tuple[int, int] | None:
                runner = find_runner(session)
                return runner if runner and runner[0] > previous_fence else None

            if ended == "alone":
                fresh = start(f"w{number + 2}")
                workers[fresh.pid] = fresh
            eventually(find_new_runner, within=60)
            elapsed.append(time.perf_counter() - ended_at)
            if ended in ("killed", "stopped"):
                fresh = start(f"w{number + 2}")
                workers[fresh.pid] = fresh
            elif ended == "up":
                time.sleep(RestartPolicy().stable_s)  # or it restarts the worker later each time
            Session.objects.filter(pk=session.pk).update(status="cancelled", runner=None)
    finally:
        for one in (*workers.values(), ticking):
            one.kill()
    sys.stdout.write(
        f"\n{KILLS} workers ({ended}), {connection.vendor}: the session went on after"
        f" {median(elapsed):.1f} s (p50), {max(elapsed):.1f} s (max), bar {BARS_S[ended]:.0f} s\n"
    )
    assert median(elapsed) <= BARS_S[ended]
