import time

import pytest

from bonobot.celery import app
from bonobot.lib.alone import Alone
from bonobot.queues import NAMES, QUEUES, age_s, routes, stamp
from bonobot.schedules import entries

OURS = ("agents.", "bonobot.", "mcp_servers.")


def test_every_task_has_one_queue() -> None:
    app.loader.import_default_modules()
    assert set(routes()) == {name for name in app.tasks if name.startswith(OURS)}
    assert sum(len(queue.tasks) for queue in QUEUES) == len(routes())


def test_what_is_scheduled_runs_alone_in_a_process() -> None:
    app.loader.import_default_modules()
    scheduled = {entry["task"] for entry in entries().values()}
    assert {name for name in routes() if isinstance(app.tasks[name], Alone)} == scheduled
    # So whatever hangs of them leaves threads to sessions.
    assert app.conf.worker_concurrency > len(scheduled)


def test_a_message_tells_its_age() -> None:
    headers: dict[str, object] = {}
    assert age_s(headers) == 0
    stamp(headers)
    assert 0 <= age_s(headers) < 60
    assert age_s({"bonobot_sent_at": time.time() + 60}) == 0
    assert age_s({"bonobot_sent_at": "yesterday"}) == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_queue_is_bound_by_its_own_key(name: str) -> None:
    assert app.amqp.queues[name].routing_key == name
