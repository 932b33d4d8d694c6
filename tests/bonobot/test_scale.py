"""Lists cost the same number of queries however many rows there are behind them."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests import crowd


@pytest.mark.django_db
def test_every_list_and_page_takes_the_same_queries_for_ten_times_the_rows() -> None:
    town = crowd.town(servers=52, each=3, calls=20)
    queries(town)  # what this process keeps is read now
    few = queries(town)
    town.grow(servers=470, each=3, calls=200)
    for _ in range(2):  # so is the agent's new snapshot, after its tools got their names
        town.open(dict(town.pages())["REST agent's tools"])
    assert queries(town) == few


def queries(town: crowd.Town) -> dict[str, int]:
    """Return how many queries each page makes."""
    counts = {}
    for title, address in town.pages():
        with CaptureQueriesContext(connection) as captured:
            town.open(address)
        counts[title] = len(captured)
    return counts
