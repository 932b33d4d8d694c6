"""`bonobot approvals`, and runs that wait for an approval."""

import json

import pytest

from agents.assignments import set_callable_agents
from agents.cli import approvals as cli_approvals
from agents.models import Agent, Approval, SessionApproval
from agents.policies.services import PolicySpec, set_policy
from bonobot.accounts.models import Organization
from bonobot.core.cli.command_group import CommandContext
from tests import admin_client, factories
from tests.command_line import Bonobot

pytestmark = pytest.mark.django_db(transaction=True)

TIME_TOOL = "mcp_time_get_current_time"
MESSAGE = f'/{TIME_TOOL} {{"timezone": "Asia/Tokyo"}}'


@pytest.fixture
def agent(acme: Organization) -> Agent:
    new_agent = factories.create_agent(acme)
    factories.approve_server(acme, factories.create_stdio_server(acme), new_agent)
    set_policy(factories.build_administrator(acme), new_agent, PolicySpec("all", ask=(TIME_TOOL,)))
    return new_agent


def test_pending_approvals_are_listed_shown_and_answered(
    bonobot: Bonobot, acme: Organization
) -> None:
    helper = factories.create_agent(acme)
    session, first = factories.create_waiting_session(helper)
    second = factories.create_approval(helper, arguments={"text": "\u202e<b>"})
    assert len(bonobot("approvals", "list", "--json").json) == 2
    text = bonobot("approvals", "show", str(second.pk)).out
    assert "U+202E" in text
    assert bonobot("approvals", "approve", str(first.pk), "--session").status == 0
    assert SessionApproval.objects.get().session_id == session.pk
    result = bonobot("approvals", "deny", str(second.pk), "--message", "No.", "--json")
    assert (result.json["state"], result.json["message"]) == ("denied", "No.")
    second_result = bonobot("approvals", "approve", str(second.pk), "--json")
    assert (second_result.status, second_result.error["code"]) == (1, "already_answered")
    assert "No pending approvals." in bonobot("approvals", "list").out


def test_an_approval_whose_definition_changed_is_marked(
    bonobot: Bonobot, acme: Organization
) -> None:
    server = admin_client.create_web_server(acme)
    definition = admin_client.declare_tool(server, description="Adds numbers.")
    outdated, other = (
        factories.create_approval(
            factories.create_agent(acme, name), server_id=server.pk, definition_digest=digest
        )
        for name, digest in (("first", "0" * 64), ("second", definition.digest))
    )
    rows = {row["id"]: row for row in bonobot("approvals", "list", "--json").json}
    assert rows[str(outdated.pk)]["definition_changed"] is True
    assert rows[str(outdated.pk)]["state"] == "waiting"
    assert rows[str(other.pk)]["definition_changed"] is False
    shown = bonobot("approvals", "show", str(outdated.pk), "--json").json
    assert (shown["state"], shown["definition_changed"]) == ("waiting", True)
    assert bonobot("approvals", "list").out.count("Pending approval (definition changed)") == 1
    assert "definition changed" in bonobot("approvals", "show", str(outdated.pk)).out
    assert "definition changed" not in bonobot("approvals", "show", str(other.pk)).out


def test_a_waiting_run_prints_how_to_answer(bonobot: Bonobot, agent: Agent) -> None:
    result = bonobot("agents", "run", "helper", MESSAGE, "--json")
    approval = Approval.objects.get()
    assert (result.status, result.json["status"]) == (1, "waiting")
    assert result.json["approvals"][0]["id"] == str(approval.pk)


def test_a_run_shows_the_pending_approval_of_an_agent_that_it_called(
    bonobot: Bonobot, acme: Organization, agent: Agent
) -> None:
    parent = factories.create_agent(acme, "parent")
    set_callable_agents(factories.build_administrator(acme), parent, [agent.slug])
    text = f"/ask_helper {json.dumps({'message': MESSAGE})}"
    result = bonobot("agents", "run", "parent", text, "--json")
    approval = Approval.objects.get()
    assert (result.status, result.json["status"]) == (1, "waiting")
    assert result.json["approvals"][0]["id"] == str(approval.pk)
    text_result = bonobot("agents", "run", "parent", text)
    waiting = Approval.objects.exclude(pk=approval.pk).get()
    assert (text_result.status, f"approve {waiting.pk}" in text_result.out) == (1, True)


def test_a_terminal_asks_for_the_approval_of_a_called_agent(
    bonobot: Bonobot, acme: Organization, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = factories.create_agent(acme, "parent")
    set_callable_agents(factories.build_administrator(acme), parent, [agent.slug])
    monkeypatch.setattr(CommandContext, "can_ask", True)
    monkeypatch.setattr("rich.prompt.PromptBase.get_input", lambda *_, **__: "yes")
    result = bonobot("agents", "run", "parent", f"/ask_helper {json.dumps({'message': MESSAGE})}")
    assert (result.status, Approval.objects.get().state) == (0, Approval.State.APPROVED)


def test_a_waiting_run_continues_after_the_answer(
    bonobot: Bonobot, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def approve(seconds: float) -> None:
        bonobot("approvals", "approve", str(Approval.objects.pending().get().pk))

    monkeypatch.setattr(cli_approvals.watch_rows, "pause", approve)
    result = bonobot("agents", "run", "helper", MESSAGE, "--wait")
    assert result.status == 0
    assert "bonobot approvals approve" in result.out


@pytest.mark.parametrize(
    ("lines", "state", "session_approvals"),
    [
        (["", "yes"], Approval.State.DENIED, 0),
        (["maybe", "y"], Approval.State.APPROVED, 0),
        (["for"], Approval.State.APPROVED, 1),
    ],
)
def test_a_terminal_asks_for_the_approval(
    bonobot: Bonobot, agent: Agent, monkeypatch: pytest.MonkeyPatch, lines, state, session_approvals
) -> None:
    monkeypatch.setattr(CommandContext, "can_ask", True)
    answers = iter(lines)
    monkeypatch.setattr("rich.prompt.PromptBase.get_input", lambda *_, **__: next(answers))
    assert bonobot("agents", "run", "helper", MESSAGE).status == 0
    assert Approval.objects.get().state == state
    assert SessionApproval.objects.count() == session_approvals
