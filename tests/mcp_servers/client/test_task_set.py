"""Background tasks are supervised and end with their owner."""

import asyncio
import logging

import pytest

from mcp_servers.client.task_set import TaskSet


async def test_a_failure_in_the_background_is_logged(caplog: pytest.LogCaptureFixture):
    async def fail() -> None:
        raise ValueError("broken")

    tasks = TaskSet()
    task = tasks.spawn(fail(), name="a job")
    with caplog.at_level(logging.ERROR):
        await asyncio.wait({task})
        await asyncio.sleep(0)
    assert "a job" in caplog.text
    assert len(tasks) == 0


async def test_closing_cancels_and_waits():
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    crew = TaskSet()
    crew.spawn(work(), name="work")
    await asyncio.sleep(0)
    await crew.close()
    assert ended == [True]


async def test_a_task_can_close_its_own_group():
    crew = TaskSet()
    await crew.spawn(crew.close(), name="close")
