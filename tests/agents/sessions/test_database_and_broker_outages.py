"""Outages of a worker's database and loss of its broker's messages."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from django.conf import settings
from django.db import connection
from django.utils import timezone

from agents.models import Agent, Session, Step
from agents.sessions import services as session_services
from agents.tasks import sweep
from bonobot.accounts.models import Organization
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Server
from tests import factories
from tests.ledger_chain import verify_whole_chain
from tests.processes import Process, build_database_url
from tests.tcp_relay import TcpRelay, open_relay
from tests.wait import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.worker]

RESTING = (Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED)


def is_resting(session: Session) -> bool:
    session.refresh_from_db()
    return session.status in RESTING


def is_in_order(session: Session) -> bool:
    """Return whether no step of a session is lost, doubled or left open."""
    steps = list(session.steps.order_by("seq"))
    assert [step.seq for step in steps] == list(range(1, len(steps) + 1))
    assert sum(step.kind == Step.Kind.MESSAGE for step in steps) == 1
    assert sum(step.kind == Step.Kind.END for step in steps) == 1
    assert not [step for step in steps if step.state == Step.State.INTENT]
    assert not AuditRow.objects.running().exists()
    return verify_whole_chain(session.organization_id).ok


@pytest.fixture
def database(transactional_db: None) -> Iterator[TcpRelay]:
    """The relay between the worker and the database."""
    database_settings = connection.settings_dict
    with open_relay(
        str(database_settings["HOST"]), int(database_settings["PORT"] or 5432)
    ) as relay:
        yield relay


def build_worker_env(relay: TcpRelay) -> dict[str, str]:
    database_settings = connection.settings_dict
    address = f"@{database_settings['HOST']}:{database_settings['PORT'] or 5432}/"
    return {"DATABASE_URL": build_database_url().replace(address, f"@127.0.0.1:{relay.port}/")}


@pytest.mark.postgres
def test_a_database_outage_loses_no_message_and_repeats_no_effect(
    acme: Organization,
    helper: Agent,
    workshop: Server,
    effects: Path,
    database: TcpRelay,
    start_worker: Callable[..., Process],
) -> None:
    worker = start_worker(**build_worker_env(database))
    text = '/mcp_workshop_count {"what": "one"}\n/mcp_workshop_wait {"seconds": 1.5}'
    session = session_services.start_session(factories.build_administrator(acme), helper, text)
    eventually(AuditRow.objects.filter(tool_name="wait").exists, within=30)
    database.disconnect()
    # The result of the call can't be written.
    eventually(lambda: "can't be written" in worker.log(), within=30)
    database.reconnect()
    eventually(lambda: is_resting(session) or sweep() or False, within=60, every=0.5)
    assert session.status == Session.Status.DONE, session.error_detail
    assert is_in_order(session)
    assert effects.read_text().split() == ["one"]
    assert worker.running


@pytest.mark.redis
def test_sessions_lost_by_the_broker_are_found_by_a_new_worker_or_the_schedule(
    acme: Organization, helper: Agent, workshop: Server, start_worker: Callable[..., Process]
) -> None:
    administrator = factories.build_administrator(acme)
    sessions = [
        session_services.start_session(
            administrator, helper, f'/mcp_workshop_echo {{"text": "{n}"}}'
        )
        for n in range(3)
    ]
    broker = redis.Redis.from_url(settings.REDIS_URL)
    broker.flushdb()
    start_worker()
    running = session_services.start_session(
        administrator, helper, '/mcp_workshop_wait {"seconds": 1}'
    )
    eventually(AuditRow.objects.filter(session_id=running.pk).exists, within=30)
    broker.flushdb()
    # A new worker finds sessions that were queued for a second, a sweep after ten.
    Session.objects.filter(status=Session.Status.QUEUED).update(
        updated_at=timezone.now() - timedelta(seconds=20)
    )
    sweep()
    all_sessions = [*sessions, running]
    eventually(lambda: all(is_resting(session) for session in all_sessions), within=60)
    assert {session.status for session in all_sessions} == {Session.Status.DONE}
    assert all(is_in_order(session) for session in all_sessions)
