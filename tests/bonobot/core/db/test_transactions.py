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
def closed() -> Iterator[None]:
    yield
    get_runtime().close()


def named(host: str) -> bool:
    """Write a row; tell whether others share the transaction."""
    shared = connection.in_atomic_block
    with transaction.atomic():
        Runner.objects.create(host=host, pid=1, heartbeat_at="2026-01-01T00:00:00Z")
    return shared


def refused() -> None:
    named("undone")
    raise DatabaseError("no")


def wrong() -> None:
    with transaction.atomic():
        named("undone")
        raise LookupError("not this one")


def answers(*works: Callable[[], Any]) -> list[Any]:
    """Return what works answer that come while another one is under way, the other's first."""
    busy, go = threading.Event(), threading.Event()

    def first() -> str:
        busy.set()
        go.wait(10)
        return "first"

    async def asked() -> list[Any]:
        together = TransactionBatcher()
        tasks = [asyncio.create_task(together.run(first))]
        await asyncio.to_thread(busy.wait, 10)
        tasks += [asyncio.create_task(together.run(work)) for work in works]
        await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return get_runtime().call(asked, timeout_s=20)


def hosts() -> set[str]:
    return set(Runner.objects.values_list("host", flat=True))


def test_a_single_caller_has_its_own_transaction() -> None:
    async def alone() -> bool:
        return await TransactionBatcher().run(named, "alone")

    assert get_runtime().call(alone) is False
    assert hosts() == {"alone"}


def test_concurrent_callers_share_a_transaction() -> None:
    assert answers(lambda: named("a"), lambda: named("b")) == ["first", True, True]
    assert hosts() == {"a", "b"}


def test_a_failing_caller_doesnt_affect_others() -> None:
    _, a, fault, b = answers(lambda: named("a"), wrong, lambda: named("b"))
    assert (a, b) == (True, True)
    assert isinstance(fault, LookupError)
    assert hosts() == {"a", "b"}


def test_a_group_that_the_database_refuses_is_retried_one_by_one() -> None:
    _, a, fault, b = answers(lambda: named("a"), refused, lambda: named("b"))
    assert (a, b) == (False, False)
    assert isinstance(fault, DatabaseError)
    assert sorted(Runner.objects.values_list("host", flat=True)) == ["a", "b", "undone"]


def test_a_foreign_key_error_doesnt_affect_others() -> None:
    """A reference is looked at when the transaction is committed."""

    def astray() -> None:
        with transaction.atomic():
            Inbox.objects.create(session_id=uuid4(), kind=Inbox.Kind.MESSAGE)

    _, a, fault, b = answers(lambda: named("a"), astray, lambda: named("b"))
    assert (a, b) == (False, False)
    assert isinstance(fault, IntegrityError)
    assert hosts() == {"a", "b"}


def test_the_work_of_a_caller_that_left_is_done() -> None:
    async def asked() -> None:
        together, busy, go = TransactionBatcher(), threading.Event(), threading.Event()

        def first() -> None:
            busy.set()
            go.wait(10)

        waits = asyncio.create_task(together.run(first))
        await asyncio.to_thread(busy.wait, 10)
        gone = asyncio.create_task(together.run(named, "gone"))
        await asyncio.sleep(0)
        gone.cancel()
        go.set()
        await waits
        await together.run(named, "next")

    get_runtime().call(asked, timeout_s=20)
    assert hosts() == {"gone", "next"}
