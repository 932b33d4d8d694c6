import threading
from typing import Any

from bonobot.celery import app
from bonobot.core.exclusive_task import ExclusiveTask

WAIT_S = 10


def test_of_two_concurrent_runs_the_second_is_skipped() -> None:
    started, release = threading.Event(), threading.Event()
    runs: list[int] = []

    @app.task(base=ExclusiveTask, name="tests.alone", shared=False)
    def task(number: int) -> int:
        runs.append(number)
        started.set()
        assert release.wait(WAIT_S)
        return number

    first = threading.Thread(target=lambda: task.apply((1,)))
    first.start()
    assert started.wait(WAIT_S)
    assert task.apply((2,)).result is None
    release.set()
    first.join(WAIT_S)
    assert task.apply((3,)).result == 3
    assert runs == [1, 3]


def test_a_failed_run_releases_the_lock() -> None:
    @app.task(base=ExclusiveTask, name="tests.failing", shared=False)
    def task() -> Any:
        raise ValueError

    assert [type(task.apply().result) for _ in range(2)] == [ValueError, ValueError]


def test_a_task_can_be_called_directly() -> None:
    @app.task(base=ExclusiveTask, name="tests.direct", shared=False)
    def task(number: int) -> int:
        return number

    assert task(4) == 4
