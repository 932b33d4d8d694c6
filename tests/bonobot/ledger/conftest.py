"""A writer of its own for each test, and an organization to write for."""

from collections.abc import Callable, Iterator
from functools import partial
from uuid import UUID, uuid4

import pytest

from bonobot.ledger.types import Opening
from bonobot.ledger.writer.writer_thread import LedgerWriter
from tests.bonobot.ledger.factories import opening_of


@pytest.fixture
def organization_id() -> UUID:
    return uuid4()


@pytest.fixture
def opening(organization_id: UUID) -> Callable[..., Opening]:
    """Return a function that makes openings of one organization."""
    return partial(opening_of, organization_id)


@pytest.fixture
def start_writer(transactional_db: None) -> Iterator[Callable[..., LedgerWriter]]:
    """Return a function that starts a writer; it is closed before the rows are cleared."""
    started: list[LedgerWriter] = []

    def start(**options: float) -> LedgerWriter:
        started.append(LedgerWriter(**options))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def writer(start_writer: Callable[..., LedgerWriter]) -> LedgerWriter:
    return start_writer()
