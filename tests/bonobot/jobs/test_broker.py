"""Lengths of the queues, with whichever broker is configured."""

from pathlib import Path

import pytest
from pytest_django import Settings

from agents.tasks import sweep
from bonobot.celery import app
from bonobot.jobs import broker
from bonobot.jobs.queues import QUEUE_NAMES
from mcp_servers.tasks import discover_server


@pytest.fixture(autouse=True)
def _purge_queues() -> None:
    app.control.purge()


def test_each_queue_reports_its_length_and_oldest_message() -> None:
    assert [backlog.messages for backlog in broker.list_queue_backlogs()] == [0] * len(QUEUE_NAMES)
    for number in range(3):
        discover_server.delay(str(number))
    sweep.delay()
    backlogs = {backlog.queue: backlog for backlog in broker.list_queue_backlogs()}
    assert {name: backlog.messages for name, backlog in backlogs.items() if backlog.messages} == {
        "discovery": 3,
        "sweeps": 1,
    }
    assert 0 <= backlogs["discovery"].oldest_s < 60
    assert backlogs["sessions"].oldest_s == 0


def test_an_unavailable_broker_is_reported(settings: Settings, tmp_path: Path) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    broker._connect_redis.cache_clear()
    try:
        with pytest.raises(broker.BrokerUnreachable):
            broker.check_broker()
        with pytest.raises(broker.BrokerUnreachable):
            broker.list_queue_backlogs()
    finally:
        broker._connect_redis.cache_clear()
    settings.REDIS_URL = ""
    settings.BONOBOT_VAR = tmp_path
    with pytest.raises(broker.BrokerUnreachable):
        broker.check_broker()
