"""Workers in real processes: shared sessions, takeover of sessions, and independent queues."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.utils import timezone

from agents.models import Agent, Runner, Session, Step
from agents.sessions import services as session_services
from agents.tasks import sweep
from bonobot.accounts.models import Organization
from bonobot.core.concurrency_limits import MAX_CONCURRENCY
from bonobot.core.runtime import get_runtime
from bonobot.jobs import broker
from bonobot.ledger.models import AuditRow
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.effective_labels import set_labels
from mcp_servers.models import HealthCheck, Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from mcp_servers.tasks import check_due_servers, discover_server
from tests import factories, large_organization
from tests.agents.conftest import WORKSHOP
from tests.ledger_chain import verify_whole_chain
from tests.processes import Process
from tests.wait import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.worker]

FLOOD = 100  # unresponsive servers: more than two workers can handle at once


@pytest.fixture
def acme(transactional_db: None) -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    """An agent with the offline model that can call all tools."""
    return factories.create_agent(acme)


@pytest.fixture
def workshop(acme: Organization, helper: Agent) -> Iterator[Server]:
    """A real stdio server of the agent; its tool `wait` is idempotent."""
    administrator = factories.build_administrator(acme)
    config = {"command": sys.executable, "args": [str(WORKSHOP), "stdio"]}
    spec = ServerSpec(name="workshop", transport_type="stdio", endpoint_config=config)
    server = factories.approve_server(acme, create_server(administrator, spec), helper)
    set_labels(
        administrator, server, list(server.definitions.filter(name="wait")), [FlowLabel.REPEATABLE]
    )
    yield server
    get_runtime().call(get_connection_pool().forget_server, server.pk)


def is_at_rest(session: Session) -> bool:
    session.refresh_from_db()
    return session.status in (Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED)


def test_two_workers_share_sessions_and_a_stopping_one_hands_them_over(
    acme: Organization, helper: Agent, workshop: Server, start_worker: Callable[..., Process]
) -> None:
    workers = [start_worker(), start_worker()]
    administrator = factories.build_administrator(acme)
    sessions = [
        session_services.start_session(
            administrator, helper, f'/mcp_workshop_echo {{"text": "{number}"}}'
        )
        for number in range(4)
    ]
    for session in sessions:
        eventually(lambda checked=session: is_at_rest(checked), within=60)
        assert session.status == Session.Status.DONE
        assert session.steps.filter(kind=Step.Kind.END).count() == 1
    assert AuditRow.objects.filter(event_type="call").count() == len(sessions)

    session = session_services.start_session(
        administrator, helper, "\n".join(['/mcp_workshop_wait {"seconds": 1}'] * 3)
    )
    eventually(lambda: session.steps.filter(kind=Step.Kind.CALL).count() == 3, within=30)
    session.refresh_from_db()
    holder = Runner.objects.get(pk=session.runner_id)
    (killed,) = (worker for worker in workers if worker.pid == holder.pid)
    (survivor,) = (worker for worker in workers if worker is not killed)
    killed.kill()
    # Instead of waiting for the lease to expire, the test changes the heartbeat.
    Runner.objects.filter(pk=holder.pk).update(heartbeat_at="2020-01-01T00:00:00Z")
    sweep()
    eventually(lambda: is_at_rest(session), within=60)
    assert session.status == Session.Status.DONE
    calls = session.steps.filter(kind=Step.Kind.CALL)
    assert [step.state for step in calls] == [Step.State.DONE] * 3
    # Calls in progress when the worker died were repeated, each with its own entry.
    repeated = sum(len(step.payload.get("earlier", ())) for step in calls)
    rows = AuditRow.objects.filter(event_type="call", session_id=session.pk)
    assert rows.count() == 3 + repeated
    assert not AuditRow.objects.running().exists()
    assert verify_whole_chain(acme.pk).ok

    others = Runner.objects.exclude(pk=holder.pk)
    assert others.filter(stopped_at=None).exists()
    os.kill(survivor.pid, signal.SIGTERM)
    assert survivor.popen.wait(20) == 0
    assert not others.filter(stopped_at=None).exists()


class Silent:
    """A server that accepts connections and never responds."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=FLOOD)
        self._accepted: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/mcp"

    @property
    def connections(self) -> int:
        return len(self._accepted)

    def close(self) -> None:
        """Close all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for connection in (*self._accepted, self._listener):
            connection.close()

    def _accept(self) -> None:
        try:
            while True:
                self._accepted.append(self._listener.accept()[0])
        except OSError:  # closed
            return


@pytest.fixture
def add_silent(acme: Organization) -> Iterator[Callable[[], tuple[Silent, list[Server]]]]:
    """A function that adds many unresponsive servers with one URL, none of which is due."""
    listeners: list[Silent] = []

    def add_flood() -> tuple[Silent, list[Server]]:
        silent = Silent()
        servers = large_organization.add_servers(acme, FLOOD, first=FLOOD * len(listeners))
        listeners.append(silent)
        Server.objects.filter(pk__in=[server.pk for server in servers]).update(
            endpoint_config={"url": silent.url},
            allow_private=True,
            discovered_at=None,
            discovery=None,
            next_check_at=timezone.now() + timedelta(hours=1),
        )
        return silent, servers

    yield add_flood
    for silent in listeners:
        silent.close()


def is_done(session: Session) -> bool:
    session.refresh_from_db()
    return session.status == Session.Status.DONE


def is_queue_empty() -> bool:
    return not any(backlog.messages for backlog in broker.list_queue_backlogs())


@pytest.mark.whole("postgres")
def test_slow_discoveries_and_checks_dont_block_sessions(
    acme: Organization,
    helper: Agent,
    add_silent: Callable[[], tuple[Silent, list[Server]]],
    start_worker: Callable[..., Process],
) -> None:
    administrator = factories.build_administrator(acme)
    limit = MAX_CONCURRENCY["discovery"]
    silent, servers = add_silent()
    start_worker(BONOBOT_WORKER_THREADS="1")
    for server in servers:
        discover_server.delay(str(server.pk))
    session = session_services.start_session(administrator, helper, "Good morning")
    eventually(lambda: is_done(session), within=30)
    assert not HealthCheck.objects.exists()
    eventually(is_queue_empty, within=30)
    eventually(lambda: silent.connections == limit, within=30)
    session = session_services.start_session(administrator, helper, "And now?")
    eventually(lambda: is_done(session), within=30)
    assert (silent.connections, HealthCheck.objects.count()) == (limit, 0)

    # A worker claims only as many checks as it can run, and leaves the others to other workers.
    limit = MAX_CONCURRENCY["health"]
    silent, servers = add_silent()
    Server.objects.filter(pk__in=[server.pk for server in servers]).update(
        next_check_at=timezone.now()
    )
    check_due_servers.delay()
    eventually(lambda: silent.connections == limit, within=30)
    session = session_services.start_session(administrator, helper, "Still there?")
    eventually(lambda: is_done(session), within=30)
    assert Server.objects.due_for_check().count() == FLOOD - limit
    start_worker()

    def is_flooded() -> bool:
        """Request checks again: the first worker, which is busy, may receive the message."""
        check_due_servers.delay()
        return silent.connections >= 2 * limit

    eventually(is_flooded, within=30)
    # A check that ended meanwhile, by its timeout, made room for another one.
    due = Server.objects.due_for_check().count()
    assert due >= FLOOD - 2 * limit - HealthCheck.objects.count()
