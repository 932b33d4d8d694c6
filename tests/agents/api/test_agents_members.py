"""Members of an agent over REST: added, removed, recorded in the audit log."""

import json

import pytest

from agents.models import Agent
from bonobot.accounts.models import Membership, Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from tests import factories, rest
from tests.rest import RestClient

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.fixture
def operator(acme: Organization) -> RestClient:
    return rest.as_role(acme, Role.OPERATOR)


@pytest.fixture
def path(helper: Agent) -> str:
    return f"agents/{helper.slug}/members"


@pytest.fixture
def members(acme: Organization) -> dict[str, Principal]:
    return {name: factories.create_member(acme, Role.MEMBER, name) for name in ("anna", "bert")}


def list_usernames(response: rest.RestResponse) -> list[str]:
    return [member["username"] for member in response.json["results"]]


def list_recorded_members() -> list[list[str]]:
    rows = AuditRow.objects.filter(action="agent_access_updated").order_by("seq")
    return [json.loads(row.opened)["details"]["members"] for row in rows]


def test_members_get_access_to_an_agent_and_lose_it(operator, path, members):
    assert operator.get(path).json["results"] == []
    assert list_usernames(operator.put(path, {"members": ["bert", "anna"]})) == ["anna", "bert"]
    assert (
        list_usernames(operator.put(path, {"members": ["bert"]}))
        == list_usernames(operator.get(path))
        == ["bert"]
    )
    assert operator.delete(path).status == 204
    assert list_usernames(operator.get(path)) == []
    assert list_recorded_members() == [["anna", "bert"], ["bert"], []]


def test_one_member_gets_access_and_loses_it(acme, helper, operator, path, members):
    anna, bert = (member.id for member in members.values())
    for user_id in (anna, anna, bert):
        assert operator.put(f"{path}/{user_id}").json["user_id"] == user_id
    assert Agent.objects.visible_to(members["anna"]).exists()
    assert operator.delete(f"{path}/{anna}").status == 204
    assert not Agent.objects.visible_to(members["anna"]).exists()
    assert list_usernames(operator.get(path)) == ["bert"]
    assert list_recorded_members()[-1] == ["bert"]
    response = operator.delete(f"{path}/{anna}")
    assert (response.status, response.json["field"]) == (404, "user_id")


def test_people_who_arent_members_cant_get_access(acme, operator, path):
    stranger = factories.create_member(factories.create_organization("other"), Role.MEMBER, "carl")
    response = operator.put(path, {"members": ["carl"]})
    assert (response.status, response.json["field"]) == (400, "members")
    for user_id in (stranger.id, "nonsense"):
        response = operator.put(f"{path}/{user_id}")
        assert (response.status, response.json["field"]) == (404, "user_id")
    assert list_recorded_members() == []


def test_former_members_arent_listed(operator, path, members):
    operator.put(path, {"members": ["anna", "bert"]})
    Membership.objects.filter(user=members["anna"].id).delete()
    assert list_usernames(operator.get(path)) == ["bert"]


def test_the_list_uses_the_same_queries_for_any_number_of_members(
    acme, operator, path, members, django_assert_num_queries
):
    operator.put(path, {"members": list(members)})
    new_members = [factories.create_member(acme, Role.MEMBER, f"m{n}").label for n in range(6)]
    operator.put(path, {"members": [*members, *new_members]})
    with django_assert_num_queries(5):  # the token, the agent, its labels, the members, their names
        assert len(list_usernames(operator.get(path))) == 8
