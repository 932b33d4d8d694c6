"""Lists can be ordered and responses reduced to fields as documented; other values are refused.

The paths, orderings and fields are read from the OpenAPI document, so that new lists are tested
automatically.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.core.api.selected_fields import SPARSE_JSON
from tests import factories, rest
from tests.inventory import create_everything
from tests.rest import RestClient

pytestmark = pytest.mark.django_db

NAMES = re.compile(r"\(([\w|]+)\)")
# Paths without a row in the inventory, and operations whose values change while they are read.
EXCLUDED = ("draft", "snippets", "operations", "/import", "/definitions/{definition_id}")
MEASURED = ("get_usage", "get_agent_flow_labels", "get_token_flow_labels", "get_server_uptime")


def list_reads() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every path that returns an object or a list, with its operation."""
    for path, methods in rest.build_document()["paths"].items():
        operation = methods.get("get", {})
        responses = operation.get("responses", {}).get("200", {}).get("content", {})
        if SPARSE_JSON in responses and not any(part in path for part in EXCLUDED):
            yield path, operation


def list_names(operation: dict[str, Any], parameter: str) -> list[str]:
    """Return the names that a parameter accepts."""
    matching = [item for item in operation["parameters"] if item["name"] == parameter]
    return NAMES.search(matching[0]["schema"]["pattern"])[1].split("|") if matching else []


LISTS = [path for path, operation in list_reads() if list_names(operation, "ordering")]
OBJECTS = [path for path, operation in list_reads()]


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def owner(acme: Organization) -> RestClient:
    return rest.as_administrator()


def fill_path(path: str, ids: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: ids[match[1]], path)


def walk(client: RestClient, address: str, size: int = 1) -> list[Any]:
    """Return all rows of a list, read in pages of this size."""
    rows, next_page = [], f"{address}&limit={size}"
    while next_page:
        response = client.get(next_page)
        assert response.status == 200, response
        rows += response.json["results"]
        next_page = response.json["next"]
    return rows


def test_every_list_can_be_ordered_both_ways_by_its_documented_fields(acme, owner):
    for mark in ("", "-b"):
        ids = create_everything(acme, mark)
    for path in LISTS:
        names = list_names(rest.build_document()["paths"][path]["get"], "ordering")
        address = f"{fill_path(path, ids)}?limit=500"
        default_rows = owner.get(address).json["results"]
        for name in names:
            rows = owner.get(f"{address}&ordering={name}").json["results"]
            reversed_rows = owner.get(f"{address}&ordering=-{name}").json["results"]
            values = [row[name] for row in rows if name in row]
            assert len(rows) == len(default_rows), (path, name)
            assert [row[name] for row in reversed_rows if name in row] == values[::-1], (path, name)
            assert not values or min(values) in (values[0], values[-1]), (path, name)
        paged = f"{fill_path(path, ids)}?ordering={names[-1]}"
        assert walk(owner, paged, max(1, len(rows) // 2)) == rows, path


def test_selected_fields_are_returned_unchanged(acme, owner):
    ids = create_everything(acme)
    for path in OBJECTS:
        operation = rest.build_document()["paths"][path]["get"]
        if operation["operationId"] in MEASURED:
            continue
        full = owner.get(fill_path(path, ids))
        chosen = list_names(operation, "fields")[:2]
        sparse = owner.get(f"{fill_path(path, ids)}?fields={','.join(chosen)}")
        assert (full.status, sparse.status) == (200, 200), path
        assert sparse.headers["Content-Type"] == SPARSE_JSON, path
        rows, sparse_rows = (
            (full.json["results"], sparse.json["results"])
            if path in LISTS
            else ([full.json], [sparse.json])
        )
        assert sparse_rows == [
            {name: row[name] for name in chosen if name in row} for row in rows
        ], path


@pytest.mark.parametrize("query", ["", "ordering=-name,created_at", "fields=slug,name"])
def test_a_list_uses_the_same_number_of_queries_for_all_parameters(acme, owner, query):
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as caught:
            assert owner.get(f"agents?{query}").status == 200
        return len(caught)

    factories.create_agent(acme, "one")
    expected = queries()
    for number in range(8):
        factories.create_agent(acme, f"agent-{number}")
    assert queries() == expected == 5


@pytest.mark.parametrize(
    ("query", "code", "field", "value"),
    [
        ("ordering=instructions", "unknown_ordering", "ordering", "instructions"),
        ("ordering=name,", "unknown_ordering", "ordering", "''"),
        ("ordering=--name", "unknown_ordering", "ordering", "--name"),
        ("ordering=", "unknown_ordering", "ordering", "''"),
        ("fields=name,nmae", "unknown_field", "fields", "nmae"),
        ("fields=", "unknown_field", "fields", "''"),
    ],
)
def test_an_unknown_field_name_is_refused_with_the_known_ones(
    acme, owner, query, code, field, value
):
    response = owner.get(f"agents?{query}")
    assert (response.status, response.code, response.json["field"]) == (400, code, field)
    assert value in response.json["detail"]
    assert "created_at" in response.json["remedy"]


def test_fields_can_be_selected_for_a_single_object_too(acme, owner):
    agent = factories.create_agent(acme, "one")
    response = owner.get(f"agents/{agent.pk}?fields=slug")
    assert response.json == {"slug": "one"}
    assert owner.get(f"agents/{agent.pk}?fields=secret").code == "unknown_field"


def test_a_write_returns_the_complete_object(acme, owner):
    response = owner.patch(
        f"agents/{factories.create_agent(acme).pk}?fields=slug", {"name": "Scribe"}
    )
    assert (response.status, response.json["name"]) == (200, "Scribe")


def test_equal_rows_keep_the_default_order_across_pages(acme, owner):
    for name in ("c", "a", "b"):
        factories.create_agent(acme, name)
    Agent.objects.update(updated_at=Agent.objects.first().created_at)
    assert [row["slug"] for row in walk(owner, "agents?ordering=-updated_at")] == ["a", "b", "c"]


def test_secrets_cant_be_selected_or_ordered_by(acme, owner):
    for path in LISTS:
        names = list_names(rest.build_document()["paths"][path]["get"], "ordering")
        assert not {"auth_config", "endpoint_config", "api_key", "url", "digest"} & set(names), path
