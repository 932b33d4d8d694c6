import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction

from agents.models import Inbox, Runner
from bonobot.core.db.transactions import TransactionBatcher
from bonobot.core.runtime import get_runtime

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _close_runtime() -> Iterator[None]:
    yield
    get_runtime().close()


def write_row(host: str) -> bool:
    """Write a row; return whether the transaction is shared."""
    shared = connection.in_atomic_block
    with transaction.atomic():
        Runner.objects.create(host=host, pid=1, heartbeat_at="2026-01-01T00:00:00Z")
    return shared


def fail_in_database() -> None:
    write_row("undone")
    raise DatabaseError("no")


def fail_with_lookup_error() -> None:
    with transaction.atomic():
        write_row("undone")
        raise LookupError("not this one")


def run_together(*callers: Callable[[], Any]) -> list[Any]:
    """Run callers during another transaction; return all results, that of the other one first."""
    started, release = threading.Event(), threading.Event()

    def first() -> str:
        started.set()
        release.wait(10)
        return "first"

    async def run() -> list[Any]:
        batcher = TransactionBatcher()
        tasks = [asyncio.create_task(batcher.run(first))]
        await asyncio.to_thread(started.wait, 10)
        tasks += [asyncio.create_task(batcher.run(caller)) for caller in callers]
        await asyncio.sleep(0)
        release.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return get_runtime().call(run, timeout_s=20)


def hosts() -> set[str]:
    return set(Runner.objects.values_list("host", flat=True))


def test_a_single_caller_has_its_own_transaction() -> None:
    async def alone() -> bool:
        return await TransactionBatcher().run(write_row, "alone")

    assert get_runtime().call(alone) is False
    assert hosts() == {"alone"}


def test_concurrent_callers_share_a_transaction() -> None:
    assert run_together(lambda: write_row("a"), lambda: write_row("b")) == ["first", True, True]
    assert hosts() == {"a", "b"}


def test_a_failing_caller_doesnt_affect_others() -> None:
    _, a, error, b = run_together(
        lambda: write_row("a"), fail_with_lookup_error, lambda: write_row("b")
    )
    assert (a, b) == (True, True)
    assert isinstance(error, LookupError)
    assert hosts() == {"a", "b"}


def test_a_group_that_the_database_refuses_is_retried_one_by_one() -> None:
    _, a, error, b = run_together(lambda: write_row("a"), fail_in_database, lambda: write_row("b"))
    assert (a, b) == (False, False)
    assert isinstance(error, DatabaseError)
    assert sorted(Runner.objects.values_list("host", flat=True)) == ["a", "b", "undone"]


def test_a_foreign_key_error_doesnt_affect_others() -> None:
    """Foreign keys are checked at commit."""

    def write_dangling_reference() -> None:
        with transaction.atomic():
            Inbox.objects.create(session_id=uuid4(), kind=Inbox.Kind.MESSAGE)

    _, a, error, b = run_together(
        lambda: write_row("a"), write_dangling_reference, lambda: write_row("b")
    )
    assert (a, b) == (False, False)
    assert isinstance(error, IntegrityError)
    assert hosts() == {"a", "b"}


def test_the_work_of_a_canceled_caller_is_completed() -> None:
    async def run() -> None:
        batcher, started, release = TransactionBatcher(), threading.Event(), threading.Event()

        def first() -> None:
            started.set()
            release.wait(10)

        first_task = asyncio.create_task(batcher.run(first))
        await asyncio.to_thread(started.wait, 10)
        canceled = asyncio.create_task(batcher.run(write_row, "gone"))
        await asyncio.sleep(0)
        canceled.cancel()
        release.set()
        await first_task
        await batcher.run(write_row, "next")

    get_runtime().call(run, timeout_s=20)
    assert hosts() == {"gone", "next"}
