"""Lists cost the same number of queries however many rows there are behind them."""

from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents.calls.snapshots import get_snapshot_cache
from tests import large_organization


@pytest.mark.django_db
def test_every_list_and_page_uses_the_same_queries_for_ten_times_the_rows() -> None:
    town = large_organization.town(servers=52, each=3, calls=20)
    queries(town)  # what this process keeps is read now
    few = queries(town)
    town.grow(servers=470, each=3, calls=200)
    for _ in range(2):  # so is the agent's new snapshot, after its tools got their names
        town.open(dict(town.pages())["REST agent's tools"])
    assert queries(town) == few


@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["agent", "server"])
def test_a_snapshot_uses_the_same_queries_for_ten_times_the_definitions(kind: str) -> None:
    town = large_organization.town(servers=2, each=3, calls=0)
    key = town.agent.pk if kind == "agent" else town.server.pk
    few = reading(kind, key)
    large_organization.declare([town.server], 60)
    assert reading(kind, key) == few


def reading(kind: str, key: UUID) -> int:
    """Return how many queries a snapshot takes whose tools have their names."""
    get_snapshot_cache().load(kind, key)
    with CaptureQueriesContext(connection) as captured:
        get_snapshot_cache().load(kind, key)
    return len(captured)


def queries(town: large_organization.Town) -> dict[str, int]:
    """Return how many queries each page makes."""
    counts = {}
    for title, address in town.pages():
        with CaptureQueriesContext(connection) as captured:
            town.open(address)
        counts[title] = len(captured)
    return counts
