"""Messages with the task names of version 0.1."""

import pytest

from bonobot.celery import RENAMED_TASKS, app, register_renamed_tasks
from bonobot.jobs.queues import build_task_routes


@pytest.mark.parametrize(("old_name", "new_name"), RENAMED_TASKS.items())
def test_a_message_with_an_old_name_runs_the_renamed_task(old_name: str, new_name: str) -> None:
    app.loader.import_default_modules()
    register_renamed_tasks(app)
    assert app.tasks[old_name].run is app.tasks[new_name].run
    assert new_name in build_task_routes()
    assert old_name not in build_task_routes()
