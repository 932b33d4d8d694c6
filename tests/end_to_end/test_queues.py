"""Queues by kind: a flood of slow discoveries, or checks, leaves sessions their place at once."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from django.utils import timezone

from agents.models import Session
from agents.sessions import requests
from bonobot import broker
from bonobot.lib.lanes import BESIDE_EACH_OTHER
from bonobot.tenancy.models import Organization
from mcp_servers.models import Check, Server
from mcp_servers.tasks import check_due, discover_server
from tests import crowd
from tests.agents import casting
from tests.eventually import eventually
from tests.processes import Process

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.worker]

FLOOD = 500


class Silent:
    """A server that takes connections and never says a word."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=FLOOD)
        self._taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/mcp"

    @property
    def connections(self) -> int:
        return len(self._taken)

    def close(self) -> None:
        """Hang up on everybody."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for one in (*self._taken, self._listener):
            one.close()

    def _take(self) -> None:
        try:
            while True:
                self._taken.append(self._listener.accept()[0])
        except OSError:  # closed
            return


@pytest.fixture
def silent() -> Iterator[Silent]:
    found = Silent()
    yield found
    found.close()


@pytest.fixture
def acme(transactional_db: None) -> Organization:
    return casting.organization()


@pytest.fixture
def servers(acme: Organization, silent: Silent) -> list[Server]:
    """Five hundred servers of which none answers; none is due."""
    made = crowd.add_servers(acme, FLOOD)
    Server.objects.update(
        endpoint_config={"url": silent.url}, allow_private=True, discovered_at=None, discovery=None
    )
    return made


def finished(session: Session) -> bool:
    session.refresh_from_db()
    return session.status == Session.Status.DONE


def taken() -> bool:
    return not any(one.messages for one in broker.waiting())


def test_five_hundred_slow_discoveries_dont_delay_a_session(
    acme: Organization, servers: list[Server], silent: Silent, start_worker: Callable[..., Process]
) -> None:
    helper = casting.agent(acme)
    start_worker(BONOBOT_WORKER_THREADS="1")
    for server in servers:
        discover_server.delay(str(server.pk))
    session = requests.start(casting.administrator(acme), helper, "Good morning")
    eventually(lambda: finished(session), within=30)
    assert not Check.objects.exists()
    eventually(taken, within=30)
    most = BESIDE_EACH_OTHER["discovery"]
    eventually(lambda: silent.connections == most, within=30)
    again = requests.start(casting.administrator(acme), helper, "And now?")
    eventually(lambda: finished(again), within=30)
    assert (silent.connections, Check.objects.count()) == (most, 0)


def test_a_worker_claims_the_checks_that_it_has_room_for_and_leaves_the_others(
    acme: Organization, servers: list[Server], silent: Silent, start_worker: Callable[..., Process]
) -> None:
    Server.objects.update(next_check_at=timezone.now())
    most = BESIDE_EACH_OTHER["health"]
    start_worker()
    check_due.delay()
    eventually(lambda: silent.connections == most, within=30)
    session = requests.start(casting.administrator(acme), casting.agent(acme), "Good morning")
    eventually(lambda: finished(session), within=30)
    assert Server.objects.due().count() == FLOOD - most
    start_worker()
    for _ in range(2):  # the first worker has no room and takes nothing
        check_due.delay()
    eventually(lambda: silent.connections >= 2 * most or check_due.delay() is None, within=30)
    assert Server.objects.due().count() >= FLOOD - 2 * most
    assert not Check.objects.exists()
