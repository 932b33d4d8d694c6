"""What a test leaves running ends with its module: tests/background_work.py."""

import asyncio
from concurrent.futures import CancelledError

import pytest

from bonobot.core.runtime import find_runtime, get_runtime
from bonobot.ledger.writer.writer_thread import get_writer
from tests.background_work import stop_background_work


@pytest.mark.django_db(transaction=True)
def test_tasks_are_canceled_and_the_writer_ends():
    heartbeat = get_runtime().spawn(asyncio.Event().wait(), name="heartbeat")
    writer = get_writer()
    assert stop_background_work()
    with pytest.raises(CancelledError):
        heartbeat.result(timeout=10)
    assert not writer.is_usable
    assert find_runtime() is None
    assert not stop_background_work()
