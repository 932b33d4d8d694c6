"""Health: who is asked when, what is remembered, and that one who hangs delays none."""

import asyncio
import sys
from datetime import timedelta

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from mcp_servers.configuration import ServerSpec
from mcp_servers.connections.pool import connections
from mcp_servers.health import check, check_all, claim_due
from mcp_servers.models import Check, Server
from mcp_servers.registration import add, switch
from mcp_servers.status import BACKOFF_LIMIT, pause, record_failure
from mcp_servers.tasks import prune_checks
from tests.agents import casting
from tests.agents.conftest import WORKSHOP
from tests.eventually import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def boss(transactional_db):
    return casting.administrator(casting.organization())


@pytest.fixture
def register(boss):
    made = []

    def go(name, *args):
        server = add(
            boss,
            ServerSpec(
                name=name,
                transport_type="stdio",
                endpoint_config={"command": sys.executable, "args": list(args)},
            ),
        )
        made.append(server)
        return server

    yield go
    for server in made:
        runtime().call(connections().forget, server.pk)


@pytest.fixture
def server(register):
    return register("workshop", str(WORKSHOP), "stdio")


def reloaded(server):
    server.refresh_from_db()
    return server


def test_a_new_server_is_due_and_claimed_once(server):
    assert claim_due() == [server.pk]
    assert claim_due() == []


def test_a_server_that_is_switched_off_is_never_due(boss, server):
    switch(boss, server, enabled=False)
    assert claim_due() == []


def test_the_first_check_discovers_the_server(server):
    runtime().call(check, server.pk)
    assert reloaded(server).status == Server.Status.CONNECTED
    assert server.definitions.exists()
    assert Check.objects.get().kind == Check.Kind.DISCOVERY


def test_later_checks_only_ask_whether_it_is_there(server):
    runtime().call(check, server.pk)
    runtime().call(check, server.pk)
    assert list(Check.objects.values_list("kind", flat=True)) == ["health", "discovery"]
    assert reloaded(server).next_check_at > timezone.now()


def test_a_server_is_discovered_again_after_a_day(server):
    runtime().call(check, server.pk)
    Server.objects.filter(pk=server.pk).update(discovered_at=timezone.now() - timedelta(hours=25))
    runtime().call(check, server.pk)
    assert Check.objects.filter(kind="discovery").count() == 2


def test_a_failure_is_remembered_and_the_next_success_ends_it(server):
    runtime().call(check, server.pk)
    good = server.endpoint_config
    Server.objects.filter(pk=server.pk).update(
        endpoint_config={"command": "/nowhere/at-all", "args": []}
    )
    runtime().call(connections().forget, server.pk)
    runtime().call(check_all, [server.pk])
    assert reloaded(server).status == Server.Status.ERROR
    assert server.status_detail
    Server.objects.filter(pk=server.pk).update(endpoint_config=good)
    runtime().call(check_all, [server.pk])
    assert (reloaded(server).status, server.failures) == (Server.Status.CONNECTED, 0)


async def stop(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_one_that_hangs_delays_none(register, settings):
    settings.BONOBOT_START_S = 60
    hanging = register("hanging", "-c", "import time; time.sleep(60)")
    server = register("workshop", str(WORKSHOP), "stdio")

    async def begin():
        return asyncio.create_task(check_all([hanging.pk, server.pk]))

    task = runtime().call(begin)
    eventually(Check.objects.filter(server=server).exists, within=20)
    assert not task.done()
    assert reloaded(hanging).status == Server.Status.CONNECTING
    runtime().call(stop, task)
    assert reloaded(server).status == Server.Status.CONNECTED


@pytest.mark.parametrize(
    ("code", "status"), [("needs_reauth", "needs_reauth"), ("server_unreachable", "error")]
)
def test_what_went_wrong_decides_the_status(server, code, status):
    record_failure(server.pk, Check.Kind.HEALTH, Problem("no", code=code, remedy="Do this."))
    assert (reloaded(server).status, server.status_code) == (status, code)
    assert server.status_detail == "no Do this."


@given(st.integers(min_value=0, max_value=10_000), st.sampled_from(["http", "stdio"]))
def test_the_pause_grows_with_failures_up_to_its_limit(failures, transport):
    server = Server(transport_type=transport)
    assert pause(server, failures) <= pause(server, failures + 1)
    assert pause(server, failures) <= max(BACKOFF_LIMIT, pause(server, 0))


def test_old_history_is_pruned(server):
    runtime().call(check, server.pk)
    assert prune_checks() == 0
    Check.objects.update(created_at=timezone.now() - timedelta(days=31))
    assert prune_checks() == 1
