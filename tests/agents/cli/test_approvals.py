"""`bonobot approvals`, and runs that wait for a person."""

import json

import pytest

from agents.callable_agents import set_callable_agents
from agents.cli import approvals as cli_approvals
from agents.models import Agent, Approval, SessionApproval
from agents.policies.services import PolicySpec, set_policy
from bonobot.accounts.models import Organization
from bonobot.core.cli.command_group import CommandContext
from tests import factories
from tests.command_line import Bonobot

pytestmark = pytest.mark.django_db(transaction=True)

NOW = "mcp_time_get_current_time"
ASK = f'/{NOW} {{"timezone": "Asia/Tokyo"}}'


@pytest.fixture
def agent(acme: Organization) -> Agent:
    made = factories.create_agent(acme)
    factories.approve_server(acme, factories.create_stdio_server(acme), made)
    set_policy(factories.build_administrator(acme), made, PolicySpec("all", ask=(NOW,)))
    return made


def test_pending_approvals_are_listed_shown_and_answered(
    bonobot: Bonobot, acme: Organization
) -> None:
    helper = factories.create_agent(acme)
    session, first = factories.create_waiting_session(helper)
    second = factories.create_approval(helper, arguments={"text": "\u202e<b>"})
    assert len(bonobot("approvals", "list", "--json").json) == 2
    shown = bonobot("approvals", "show", str(second.pk)).out
    assert "U+202E" in shown
    assert bonobot("approvals", "approve", str(first.pk), "--session").status == 0
    assert SessionApproval.objects.get().session_id == session.pk
    ran = bonobot("approvals", "deny", str(second.pk), "--message", "No.", "--json")
    assert (ran.json["state"], ran.json["message"]) == ("denied", "No.")
    again = bonobot("approvals", "approve", str(second.pk), "--json")
    assert (again.status, again.error["code"]) == (1, "already_answered")
    assert "No pending approvals." in bonobot("approvals", "list").out


def test_a_waiting_run_prints_how_to_answer(bonobot: Bonobot, agent: Agent) -> None:
    ran = bonobot("agents", "run", "helper", ASK, "--json")
    approval = Approval.objects.get()
    assert (ran.status, ran.json["status"]) == (1, "waiting")
    assert ran.json["approvals"][0]["id"] == str(approval.pk)


def test_a_run_names_the_approval_that_an_agent_it_asked_waits_for(
    bonobot: Bonobot, acme: Organization, agent: Agent
) -> None:
    parent = factories.create_agent(acme, "parent")
    set_callable_agents(factories.build_administrator(acme), parent, [agent.slug])
    text = f"/ask_helper {json.dumps({'message': ASK})}"
    ran = bonobot("agents", "run", "parent", text, "--json")
    approval = Approval.objects.get()
    assert (ran.status, ran.json["status"]) == (1, "waiting")
    assert ran.json["approvals"][0]["id"] == str(approval.pk)
    in_words = bonobot("agents", "run", "parent", text)
    waiting = Approval.objects.exclude(pk=approval.pk).get()
    assert (in_words.status, f"approve {waiting.pk}" in in_words.out) == (1, True)


def test_a_terminal_answers_for_an_agent_that_was_asked(
    bonobot: Bonobot, acme: Organization, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = factories.create_agent(acme, "parent")
    set_callable_agents(factories.build_administrator(acme), parent, [agent.slug])
    monkeypatch.setattr(CommandContext, "can_ask", True)
    monkeypatch.setattr("rich.prompt.PromptBase.get_input", lambda *_, **__: "yes")
    ran = bonobot("agents", "run", "parent", f"/ask_helper {json.dumps({'message': ASK})}")
    assert (ran.status, Approval.objects.get().state) == (0, Approval.State.APPROVED)


def test_a_waiting_run_continues_after_the_answer(
    bonobot: Bonobot, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def somebody(seconds: float) -> None:
        bonobot("approvals", "approve", str(Approval.objects.waiting().get().pk))

    monkeypatch.setattr(cli_approvals.command_group, "pause", somebody)
    ran = bonobot("agents", "run", "helper", ASK, "--wait")
    assert ran.status == 0
    assert "bonobot approvals approve" in ran.out


@pytest.mark.parametrize(
    ("said", "state", "grants"),
    [
        (["", "yes"], Approval.State.DENIED, 0),
        (["maybe", "y"], Approval.State.APPROVED, 0),
        (["for"], Approval.State.APPROVED, 1),
    ],
)
def test_a_terminal_asks_for_the_approval(
    bonobot: Bonobot, agent: Agent, monkeypatch: pytest.MonkeyPatch, said, state, grants
) -> None:
    monkeypatch.setattr(CommandContext, "can_ask", True)
    answers = iter(said)
    monkeypatch.setattr("rich.prompt.PromptBase.get_input", lambda *_, **__: next(answers))
    assert bonobot("agents", "run", "helper", ASK).status == 0
    assert Approval.objects.get().state == state
    assert SessionApproval.objects.count() == grants
