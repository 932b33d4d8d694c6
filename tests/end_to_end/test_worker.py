"""The main job in real processes: a session runs in a Celery worker, through the one door."""

import os
import signal
from collections.abc import Callable

import pytest

from agents.models import Agent, Runner, Session, Step
from agents.sessions import requests
from agents.sessions.reports import report
from agents.tasks import sweep
from bonobot.ledger.models import AuditRow
from bonobot.ledger.verify import verify
from bonobot.tenancy.models import Organization
from mcp_servers.configuration import ServerSpec
from mcp_servers.labelled import set_labels
from mcp_servers.labels import Label
from mcp_servers.models import Check, Server
from mcp_servers.registration import add
from mcp_servers.tasks import check_due
from tests.agents import casting
from tests.eventually import eventually
from tests.processes import Process

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.worker]


@pytest.fixture
def acme(transactional_db: None) -> Organization:
    return casting.organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    agent = casting.agent(acme)
    casting.ready(acme, casting.stdio_server(acme), agent)
    return agent


def resting(session: Session) -> bool:
    session.refresh_from_db()
    return session.status in (Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED)


def test_a_session_runs_in_a_worker_and_every_call_is_in_the_audit(
    acme: Organization, helper: Agent, worker: Process
) -> None:
    session = requests.start(casting.administrator(acme), helper, "What time is it in Asia/Tokyo?")
    eventually(lambda: resting(session), within=30)
    told = report(session.pk)
    assert told["status"] == "done"
    assert [one["name"] for one in told["calls"]] == ["mcp_time_get_current_time"]
    row = AuditRow.objects.get(event_type="call")
    assert (row.session_id, row.outcome, row.agent_name) == (session.pk, "ok", helper.name)
    assert verify(acme.pk).ok


def test_two_workers_share_the_sessions_and_each_runs_once(
    acme: Organization, helper: Agent, start_worker: Callable[..., Process]
) -> None:
    start_worker()
    start_worker()
    boss = casting.administrator(acme)
    sessions = [
        requests.start(boss, helper, f"What time is it in {zone}?")
        for zone in ("Asia/Tokyo", "Europe/Berlin", "America/New_York", "UTC")
    ]
    for session in sessions:
        eventually(lambda one=session: resting(one), within=60)
        assert session.status == Session.Status.DONE
        assert session.steps.filter(kind=Step.Kind.END).count() == 1
    assert AuditRow.objects.filter(event_type="call").count() == len(sessions)


def test_a_session_of_a_killed_worker_is_finished_by_another(
    acme: Organization, helper: Agent, start_worker: Callable[..., Process]
) -> None:
    first = start_worker()
    boss = casting.administrator(acme)
    server = Server.objects.get()
    set_labels(boss, server, list(server.definitions.all()), [Label.REPEATABLE])
    text = "\n".join(['/mcp_time_get_current_time {"timezone": "Asia/Tokyo"}'] * 3)
    session = requests.start(boss, helper, text)
    eventually(lambda: session.steps.filter(kind=Step.Kind.CALL).exists(), within=30)
    first.kill()
    # The lease is fifteen seconds; the test doesn't wait for it, but makes the heartbeat old.
    Runner.objects.update(beat_at="2020-01-01T00:00:00Z")
    start_worker()
    sweep()
    eventually(lambda: resting(session), within=60)
    assert session.status == Session.Status.DONE
    calls = session.steps.filter(kind=Step.Kind.CALL)
    assert [step.state for step in calls] == [Step.State.DONE] * 3
    # Those that were out when the worker died were made again, each with a row of its own.
    again = sum(len(step.payload.get("earlier", ())) for step in calls)
    assert AuditRow.objects.filter(event_type="call").count() == 3 + again
    assert not AuditRow.objects.running().exists()
    assert verify(acme.pk).ok


def test_a_worker_that_is_told_to_stop_hands_its_session_back(
    acme: Organization, helper: Agent, start_worker: Callable[..., Process]
) -> None:
    first = start_worker()
    eventually(lambda: Runner.objects.filter(stopped_at=None).exists(), within=10)
    os.kill(first.pid, signal.SIGTERM)
    assert first.popen.wait(20) == 0
    assert not Runner.objects.filter(stopped_at=None).exists()


def test_the_worker_checks_servers_that_are_due(acme: Organization, worker: Process) -> None:
    server = add(
        casting.administrator(acme),
        ServerSpec(
            name="gone",
            transport_type="http",
            endpoint_config={"url": "http://127.0.0.1:9/mcp"},
            allow_private=True,
        ),
    )
    check_due.delay()
    eventually(lambda: Check.objects.filter(server=server).exists(), within=20)
    server.refresh_from_db()
    assert (server.status, server.status_code) == (Server.Status.ERROR, "server_unreachable")
