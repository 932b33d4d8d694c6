"""How long a session stands still when its worker is killed, by the clock.

    make bench            (this among others)
    .venv/bin/python -m pytest -n0 -s -q benchmarks/bench_recovery.py

Two workers and a beat as in an installation, and a session whose call is out. The worker that runs
it is killed with SIGKILL, another is started in its place, and what counts is the time from the
kill until a new holder has the session: the lease (15 s) runs out, the sweep (10 s) finds it.
`DATABASE_URL` and `REDIS_URL` choose where it is measured.
"""

import sys
import time
from pathlib import Path
from statistics import median

import pytest
from django.db import connection

from agents.models import Runner, Session
from agents.sessions import services as sessions
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.services import set_labels
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories, processes
from tests.agents.conftest import WORKSHOP
from tests.processes import Process
from tests.wait import eventually

KILLS = 8
BAR_S = 30.0

pytestmark = pytest.mark.django_db(transaction=True)


def beat(folder: Path) -> Process:
    command = [sys.executable, "-m", "celery", "--app", "bonobot", "beat", "--pidfile="]
    return processes.start("beat", command, folder=folder, env=processes.environment())


def begun() -> Session:
    """Start a session whose call stays out, and may be made again."""
    acme = factories.create_organization()
    boss = factories.build_administrator(acme)
    agent = factories.create_agent(acme)
    config = {"command": sys.executable, "args": [str(WORKSHOP), "stdio"]}
    spec = ServerSpec(name="workshop", transport_type="stdio", endpoint_config=config)
    server = factories.approve_server(acme, create_server(boss, spec), agent)
    set_labels(boss, server, list(server.definitions.all()), [FlowLabel.REPEATABLE])
    return sessions.start_session(boss, agent, '/mcp_workshop_wait {"seconds": 3600}')


def holder(session: Session) -> tuple[int, int] | None:
    """Return the fence of who holds the session now and its process; None while nobody does."""
    session.refresh_from_db()
    runner = Runner.objects.filter(pk=session.runner_id).first() if session.runner_id else None
    return (session.fence, runner.pid) if runner else None


def test_a_killed_workers_session_goes_on(tmp_path: Path) -> None:
    workers = {
        one.pid: one for one in (processes.start_worker(tmp_path, f"w{n}") for n in range(2))
    }
    ticking = beat(tmp_path)
    took = []
    try:
        session = begun()
        fence, pid = eventually(lambda: holder(session), within=60)
        for number in range(KILLS):
            eventually(lambda: session.steps.filter(kind="call").exists(), within=60)
            workers.pop(pid).kill()
            killed_at = time.perf_counter()
            fresh = processes.start_worker(tmp_path, f"w{number + 2}")
            workers[fresh.pid] = fresh

            def taken(before: int = fence) -> tuple[int, int] | None:
                found = holder(session)
                return found if found and found[0] > before else None

            fence, pid = eventually(taken, within=10 * BAR_S)
            took.append(time.perf_counter() - killed_at)
    finally:
        for one in (*workers.values(), ticking):
            one.kill()
    sys.stdout.write(
        f"\n{KILLS} workers killed, {connection.vendor}: the session went on after"
        f" {median(took):.1f} s (median), {max(took):.1f} s at most (bar {BAR_S:.0f} s)\n"
    )
