"""Who may run an agent: given and taken over REST, each time in the audit."""

import json

import pytest

from agents.models import Agent
from bonobot.accounts.models import Membership, Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from tests import factories, rest
from tests.rest import Rest

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.fixture
def operator(acme: Organization) -> Rest:
    return rest.as_role(acme, Role.OPERATOR)


@pytest.fixture
def path(helper: Agent) -> str:
    return f"agents/{helper.slug}/members"


@pytest.fixture
def people(acme: Organization) -> dict[str, Principal]:
    return {name: factories.create_member(acme, Role.MEMBER, name) for name in ("anna", "bert")}


def names(answer: rest.Answer) -> list[str]:
    return [person["username"] for person in answer.json["results"]]


def recorded() -> list[list[str]]:
    rows = AuditRow.objects.filter(action="agent_given").order_by("seq")
    return [json.loads(row.opened)["details"]["members"] for row in rows]


def test_members_get_access_to_an_agent_and_lose_it(operator, path, people):
    assert operator.get(path).json["results"] == []
    assert names(operator.put(path, {"members": ["bert", "anna"]})) == ["anna", "bert"]
    assert names(operator.put(path, {"members": ["bert"]})) == names(operator.get(path)) == ["bert"]
    assert operator.delete(path).status == 204
    assert names(operator.get(path)) == []
    assert recorded() == [["anna", "bert"], ["bert"], []]


def test_one_member_gets_access_and_loses_it(acme, helper, operator, path, people):
    anna, bert = (one.id for one in people.values())
    for person in (anna, anna, bert):
        assert operator.put(f"{path}/{person}").json["user_id"] == person
    assert Agent.objects.visible_to(people["anna"]).exists()
    assert operator.delete(f"{path}/{anna}").status == 204
    assert not Agent.objects.visible_to(people["anna"]).exists()
    assert names(operator.get(path)) == ["bert"]
    assert recorded()[-1] == ["bert"]
    gone = operator.delete(f"{path}/{anna}")
    assert (gone.status, gone.json["field"]) == (404, "user_id")


def test_people_who_arent_members_cant_get_access(acme, operator, path):
    stranger = factories.create_member(factories.create_organization("other"), Role.MEMBER, "carl")
    answer = operator.put(path, {"members": ["carl"]})
    assert (answer.status, answer.json["field"]) == (400, "members")
    for someone in (stranger.id, "nonsense"):
        answer = operator.put(f"{path}/{someone}")
        assert (answer.status, answer.json["field"]) == (404, "user_id")
    assert recorded() == []


def test_former_members_arent_listed(operator, path, people):
    operator.put(path, {"members": ["anna", "bert"]})
    Membership.objects.filter(user=people["anna"].id).delete()
    assert names(operator.get(path)) == ["bert"]


def test_the_list_uses_the_same_queries_for_any_number_of_members(
    acme, operator, path, people, django_assert_num_queries
):
    operator.put(path, {"members": list(people)})
    more = [factories.create_member(acme, Role.MEMBER, f"m{n}").label for n in range(6)]
    operator.put(path, {"members": [*people, *more]})
    with django_assert_num_queries(4):  # the token, the agent, the people, all their names
        assert len(names(operator.get(path))) == 8
