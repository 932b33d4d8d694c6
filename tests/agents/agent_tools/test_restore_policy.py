"""Undo of a saved policy: the whole previous one, for its author, unless it changed since."""

import time

import pytest

from agents.agent_tools import restore_policy as restore_policies
from agents.agent_tools.restore_policy import restore_policy
from agents.policies.services import PolicySpec, RuleSpec, load_policy_spec
from bonobot.accounts.roles import Role
from bonobot.core.problems import Forbidden, Problem
from tests import admin_client, factories

pytestmark = pytest.mark.django_db

LARGE = RuleSpec("mcp_web_add", {"properties": {"a": {"minimum": 100}}, "required": ["a"]})
BEFORE = PolicySpec("allowlist", allow=("mcp_web_*",), deny=("mcp_web_echo",), ask=(LARGE,))
AFTER = PolicySpec("all")


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def owner_person(acme):
    return factories.create_member(acme, Role.OWNER, "olga")


@pytest.fixture(params=["agent", "organization"])
def policy_owner(acme, request):
    admin_client.create_web_server(acme)
    return factories.create_agent(acme) if request.param == "agent" else acme


def save_policy(principal, policy_owner, spec: PolicySpec) -> str:
    _policy, signed = restore_policies.save_policy(principal, policy_owner, lambda _stored: spec)
    return signed


def test_the_previous_mode_and_rules_are_restored(owner_person, policy_owner):
    save_policy(owner_person, policy_owner, BEFORE)
    signed = save_policy(owner_person, policy_owner, AFTER)
    restore_policy(owner_person, policy_owner, signed)
    assert load_policy_spec(policy_owner) == BEFORE


def test_a_save_that_changes_nothing_cant_be_undone(owner_person, policy_owner):
    save_policy(owner_person, policy_owner, BEFORE)
    assert save_policy(owner_person, policy_owner, BEFORE) == ""


def test_a_later_change_is_kept(owner_person, policy_owner):
    signed = save_policy(owner_person, policy_owner, BEFORE)
    later = PolicySpec("all", deny=("mcp_web_*",))
    save_policy(owner_person, policy_owner, later)
    with pytest.raises(Problem) as refusal:
        restore_policy(owner_person, policy_owner, signed)
    assert refusal.value.code == "policy_changed"
    assert load_policy_spec(policy_owner) == later


def test_an_undo_used_again_keeps_the_same_deny_made_by_another(acme, owner_person, policy_owner):
    denied = PolicySpec("all", deny=("mcp_web_*",))
    save_policy(owner_person, policy_owner, AFTER)
    signed = save_policy(owner_person, policy_owner, denied)
    restore_policy(owner_person, policy_owner, signed)
    another = factories.create_member(acme, Role.OWNER, "otto")
    save_policy(another, policy_owner, denied)
    with pytest.raises(Problem) as refusal:
        restore_policy(owner_person, policy_owner, signed)
    assert refusal.value.code == "policy_changed"
    assert load_policy_spec(policy_owner) == denied


def test_only_its_author_can_undo_a_save(acme, owner_person, policy_owner):
    signed = save_policy(owner_person, policy_owner, BEFORE)
    another = factories.create_member(acme, Role.OWNER, "otto")
    other_agent = factories.create_agent(acme, "other")
    for principal, owner, text in (
        (another, policy_owner, signed),
        (owner_person, other_agent, signed),
        (owner_person, policy_owner, signed + "x"),
        (owner_person, policy_owner, ""),
    ):
        with pytest.raises(Problem) as refusal:
            restore_policy(principal, owner, text)
        assert refusal.value.code == "undo_expired"
    with pytest.raises(Forbidden):
        restore_policy(factories.create_member(acme, Role.AUDITOR), policy_owner, signed)
    assert load_policy_spec(policy_owner) == BEFORE


def test_a_save_can_be_undone_for_ten_minutes(owner_person, policy_owner, monkeypatch):
    signed = save_policy(owner_person, policy_owner, BEFORE)
    monkeypatch.setattr("django.core.signing.time.time", lambda clock=time.time: clock() + 601)
    with pytest.raises(Problem) as refusal:
        restore_policy(owner_person, policy_owner, signed)
    assert refusal.value.code == "undo_expired"
