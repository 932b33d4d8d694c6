import time

import pytest

from bonobot.celery import RENAMED_TASKS, app
from bonobot.core.exclusive_task import ExclusiveTask
from bonobot.jobs.queues import (
    QUEUE_NAMES,
    QUEUES,
    build_task_routes,
    compute_message_age_s,
    set_sent_at,
)
from bonobot.jobs.schedules import get_scheduled_entries

OWN_PREFIXES = ("agents.", "bonobot.", "mcp_servers.")


def test_every_task_has_one_queue() -> None:
    app.loader.import_default_modules()
    own_tasks = {name for name in app.tasks if name.startswith(OWN_PREFIXES)}
    assert set(build_task_routes()) == own_tasks - RENAMED_TASKS.keys()
    assert sum(len(queue.tasks) for queue in QUEUES) == len(build_task_routes())


def test_scheduled_tasks_run_one_at_a_time_in_a_process() -> None:
    app.loader.import_default_modules()
    scheduled = {entry["task"] for entry in get_scheduled_entries().values()}
    assert {
        name for name in build_task_routes() if isinstance(app.tasks[name], ExclusiveTask)
    } == scheduled
    # Even if all of them hang, there are threads for sessions.
    assert app.conf.worker_concurrency > len(scheduled)


def test_a_message_has_its_age() -> None:
    headers: dict[str, object] = {}
    assert compute_message_age_s(headers) == 0
    set_sent_at(headers)
    assert 0 <= compute_message_age_s(headers) < 60
    assert compute_message_age_s({"bonobot_sent_at": time.time() + 60}) == 0
    assert compute_message_age_s({"bonobot_sent_at": "yesterday"}) == 0


@pytest.mark.parametrize("name", QUEUE_NAMES)
def test_a_queue_is_bound_to_its_own_routing_key(name: str) -> None:
    assert app.amqp.queues[name].routing_key == name
