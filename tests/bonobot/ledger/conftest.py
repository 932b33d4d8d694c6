"""Fixtures of the ledger tests: a writer, and an organization to write for."""

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
    """Return a function that builds openings of one organization."""
    return partial(opening_of, organization_id)


@pytest.fixture
def start_writer(transactional_db: None) -> Iterator[Callable[..., LedgerWriter]]:
    """Return a function that starts a writer; it is closed before the rows are cleared."""
    writers: list[LedgerWriter] = []

    def start(**options: float) -> LedgerWriter:
        writers.append(LedgerWriter(**options))
        return writers[-1]

    yield start
    for writer in writers:
        writer.close()


@pytest.fixture
def writer(start_writer: Callable[..., LedgerWriter]) -> LedgerWriter:
    return start_writer()
