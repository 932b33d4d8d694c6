"""Each route whose response has a text that a labeled token wrote labels its reader.

For writes, these are the errors that name an object, conflicts that show what changed, and results.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import pytest_django
from django.db import transaction

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.ledger.models import FlowCell
from mcp_servers.flow_labels import build_flow_key
from mcp_servers.flow_labels.token_labels import HELD_LABELS, load_token_labels
from tests import factories, rest
from tests.bonobot.test_api_matrix import OPERATIONS, fill_path
from tests.inventory import create_everything
from tests.screens import share_rows

SUFFIX = "zqword"  # at the end of the names of all objects
# The names of objects by the parameter of their ID, those with a name of their own.
NAMES = {
    "agent_id": "helper",
    "endpoint_id": "Spare",
    "preset_id": "Ours",
    "issuer_id": "Login",
    "provider_id": "ID",
    "channel_id": "Pager",
    "invitation_id": "anna",
    "token_id": "reader",
}
# Routes that show only the names of people, which no token can write.
PEOPLE = ("members", "members/<str:member_id>", "agents/<str:agent_id>/members")
# Here, the agent's name is in the source of the workflow, so its author wrote it.
COPIES = {("workflows/<str:workflow_id>/versions", "agent_id")}
WRITES = [(route, method) for route, method in OPERATIONS if method != "GET"]
READS = [route for route, method in OPERATIONS if method == "GET" and route not in PEOPLE]


class LabeledOrganization(NamedTuple):
    """An organization with one of everything, and a client that reads it."""

    acme: Organization
    ids: dict[str, str]
    token_id: str
    client: rest.RestClient

    def find_names(self, route: str) -> set[str]:
        """Return the parameters of the objects whose names a route's response has."""
        body = self.client.get(fill_path(route, self.ids)).text
        return {parameter for parameter, name in NAMES.items() if f"{name}{SUFFIX}" in body}


@pytest.fixture(scope="module")
def shared_organization(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[LabeledOrganization]:
    """Fill an organization for all tests of this module."""
    with share_rows(django_db_blocker):
        acme = factories.create_organization()
        ids = create_everything(acme, SUFFIX)
        administrator = factories.build_administrator(acme)
        token, text = create_token(administrator, name=f"reader{SUFFIX}", role=Role.OWNER)
        client = rest.RestClient(text)
        yield LabeledOrganization(acme, ids | {"token_id": str(token.pk)}, str(token.pk), client)


# Bodies with which writes fail: without values, and for an outdated version.
FAILING_BODIES: list[Any] = [{}, {"version": "outdated"}]
# Those of new objects, whose name is taken, and which need other fields.
NAME_FIELDS = ("name", "slug", "email", "title")
COMPLETE = {"kind": "offline", "model": "offline", "text": "x", "role": "member"}


@contextmanager
def roll_back() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.mark.django_db
@pytest.mark.parametrize("route", READS)
def test_a_token_that_reads_a_labeled_name_holds_its_labels(
    shared_organization: LabeledOrganization, route: str
) -> None:
    acme, token_id = shared_organization.acme, shared_organization.token_id
    with roll_back():
        names = shared_organization.find_names(route)
        assert load_token_labels(acme.pk, token_id) == 0
    unlabeled = set()
    for parameter in names:
        if (route, parameter) in COPIES:
            continue
        with roll_back():
            key = build_flow_key(acme.pk, "text", shared_organization.ids[parameter])
            FlowCell.objects.create(key=key, organization_id=acme.pk, labels=HELD_LABELS)
            shared_organization.find_names(route)
            if load_token_labels(acme.pk, token_id) != HELD_LABELS:
                unlabeled.add(parameter)
    assert unlabeled == set()


def test_names_of_all_kinds_are_in_some_response(
    shared_organization: LabeledOrganization,
) -> None:
    with roll_back():
        names = {name for route in READS for name in shared_organization.find_names(route)}
    assert names == {*NAMES}


def list_bodies(route: str, method: str) -> list[Any]:
    """Return bodies with which a write fails."""
    if method != "POST" or "<" in route:
        return FAILING_BODIES
    names = [f"{name}{SUFFIX}" for name in (*NAMES.values(), "tell", "spare")]
    return [*FAILING_BODIES, *(COMPLETE | dict.fromkeys(NAME_FIELDS, name) for name in names)]


def is_uuid(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f-]{36}", text) is not None


def write_and_check_labels(organization: LabeledOrganization, route: str, method: str) -> int:
    """Write with each body; return how many responses had a name.

    Each of these must give its reader the labels that all names have.
    """
    count = 0
    for body in list_bodies(route, method):
        with roll_back():
            cells = [
                FlowCell(
                    key=build_flow_key(organization.acme.pk, "text", row_id),
                    organization_id=organization.acme.pk,
                    labels=HELD_LABELS,
                )
                for row_id in filter(is_uuid, {*organization.ids.values()})
            ]
            FlowCell.objects.bulk_create(cells, ignore_conflicts=True)
            headers = {"If-Match": '"outdated"'} if method == "DELETE" else {}
            path = fill_path(route, organization.ids)
            response = organization.client.send(method, path, body, **headers)
            if SUFFIX in response.text.lower():
                count += 1
                labels = load_token_labels(organization.acme.pk, organization.token_id)
                assert labels == HELD_LABELS, (body, response)
    return count


@pytest.mark.whole
@pytest.mark.django_db
@pytest.mark.parametrize(("route", "method"), WRITES)
def test_a_token_that_reads_a_labeled_name_in_a_response_to_a_write_holds_its_labels(
    shared_organization: LabeledOrganization, route: str, method: str
) -> None:
    write_and_check_labels(shared_organization, route, method)


@pytest.mark.parametrize(
    ("route", "method"),
    [
        ("agents/<str:agent_id>/tool-policy/draft/enforce", "POST"),
        ("agents/<str:agent_id>/notes/<str:note_id>", "PATCH"),
        ("identity-providers/<str:provider_id>/check", "POST"),
    ],
)
def test_errors_of_writes_have_names(
    shared_organization: LabeledOrganization, route: str, method: str
) -> None:
    """Otherwise, the test above checks nothing."""
    assert write_and_check_labels(shared_organization, route, method)
