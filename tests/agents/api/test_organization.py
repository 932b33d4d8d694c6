"""The organization over REST: kill switch and rate limit."""

import pytest

from agents.models import Session
from agents.sessions.services import start_session
from bonobot.accounts.roles import Role
from tests import factories, rest

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def helper(acme):
    return factories.create_agent(acme)


def test_the_response_counts_sessions_and_agents(acme, helper):
    start_session(factories.build_administrator(acme), helper, "hello")
    organization = rest.as_role(acme, Role.AUDITOR).get("organization").json
    assert (organization["slug"], organization["halted_at"]) == ("acme", None)
    assert (
        organization["running_sessions"],
        organization["waiting_sessions"],
        organization["agents"],
    ) == (1, 0, 1)


def test_an_owner_enables_and_disables_the_kill_switch(acme, helper):
    start_session(factories.build_administrator(acme), helper, "hello")
    owner = rest.as_role(acme, Role.OWNER)
    organization = owner.post("organization/halt", {"reason": "drill"}).json
    assert organization["halted_at"]
    assert organization["running_sessions"] == 0
    assert "drill" in Session.objects.get().error_detail
    response = owner.post(f"agents/{helper.slug}/sessions", {"message": "hello"})
    assert (response.status, response.code) == (409, "kill_switch_enabled")
    assert owner.post("organization/resume").json["halted_at"] is None


def test_an_operator_cant_use_the_kill_switch(acme):
    operator = rest.as_role(acme, Role.OPERATOR)
    assert operator.post("organization/halt", {}).status == 403
    assert operator.post("organization/resume").status == 403


def test_an_owner_sets_the_rate_limit_of_the_organization(acme):
    owner = rest.as_role(acme, Role.OWNER)
    assert owner.get("organization").json["calls_per_minute"] is None
    assert owner.patch("organization", {"calls_per_minute": 1}).json["calls_per_minute"] == 1
    response = owner.patch("organization", {"calls_per_minute": -1})
    assert (response.status, response.json["field"]) == (400, "calls_per_minute")
    operator = rest.as_role(acme, Role.OPERATOR)
    assert operator.patch("organization", {"calls_per_minute": 0}).status == 403
