"""Lists take the same number of queries for any number of rows."""

from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents.calls.snapshots import get_snapshot_cache
from tests import large_organization


@pytest.mark.whole("postgres")
@pytest.mark.django_db
def test_every_list_and_page_uses_the_same_queries_for_three_times_the_rows() -> None:
    organization = large_organization.create_large_organization(servers=52, each=3, calls=20)
    count_page_queries(organization)  # fills the caches of the process
    expected = count_page_queries(organization)
    organization.add_rows(servers=104, each=3, calls=40)
    for _ in range(2):  # and loads the new snapshot of the agent, after its tools got names
        organization.open(dict(organization.list_pages())["REST agent's tools"])
    assert count_page_queries(organization) == expected


@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["agent", "server"])
def test_a_snapshot_uses_the_same_queries_for_ten_times_the_definitions(kind: str) -> None:
    organization = large_organization.create_large_organization(servers=2, each=3, calls=0)
    key = organization.agent.pk if kind == "agent" else organization.server.pk
    expected = count_snapshot_queries(kind, key)
    large_organization.declare_tools([organization.server], 60)
    assert count_snapshot_queries(kind, key) == expected


def count_snapshot_queries(kind: str, key: UUID) -> int:
    """Return the number of queries of a snapshot whose tools have names."""
    get_snapshot_cache().load(kind, key)
    with CaptureQueriesContext(connection) as captured:
        get_snapshot_cache().load(kind, key)
    return len(captured)


def count_page_queries(organization: large_organization.LargeOrganization) -> dict[str, int]:
    """Return the number of queries of each page."""
    counts = {}
    for title, address in organization.list_pages():
        with CaptureQueriesContext(connection) as captured:
            organization.open(address)
        counts[title] = len(captured)
    return counts
