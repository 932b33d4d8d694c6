"""Rules for tools that don't exist."""

import pytest

from agents.calls.missing_tools import list_missing_tools
from agents.policies.services import PolicySpec
from bonobot.accounts.roles import Role
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db

POLICY = {"mode": "denylist", "deny": ["reed_result", "read_result", "mcp_web_*", "mcp_web_echo"]}
WARNING = "There is no tool `reed_result`. Its rule has no effect yet."


@pytest.fixture
def acme():
    acme = factories.create_organization()
    admin_client.create_web_server(acme)
    factories.create_agent(acme, "writer")
    return acme


@pytest.fixture
def helper(acme):
    return factories.create_agent(acme)


def test_names_of_tools_and_patterns_arent_missing(acme, helper):
    policy = PolicySpec("allowlist", allow=("ask_writer", "read_*", "nothing", "nothing"))
    assert list_missing_tools(acme, policy) == ["nothing"]
    # An agent has the tool only if it may ask the other one.
    assert list_missing_tools(helper, policy) == ["ask_writer", "nothing"]


@pytest.mark.parametrize("path", ["tool-policy", "agents/{}/tool-policy"])
def test_rest_returns_a_warning_and_accepts_it_back(acme, helper, path):
    owner, path = rest.as_role(acme, Role.OWNER), path.format(helper.pk)
    answer = owner.put(path, POLICY).json
    assert answer["warnings"] == [
        {"rule": "reed_result", "code": "unknown_tool", "detail": WARNING}
    ]
    assert owner.get(path).json == answer
    fixed = owner.put(path, answer | {"deny": ["read_result"]}).json
    assert (fixed["deny"], fixed["warnings"]) == (["read_result"], [])


@pytest.mark.parametrize("page", ["organization_policy", "agents_agent_policy"])
def test_the_admin_shows_a_warning_when_a_policy_is_saved(acme, helper, page):
    seat = admin_client.sign_in(acme, Role.OWNER)
    place = () if page == "organization_policy" else (helper.pk,)
    posted = seat.post(page, *place, mode="denylist", deny="reed_result\nread_result")
    words = admin_client.get_text(posted)
    assert WARNING in words
    assert words.count("has no effect yet") == 1
