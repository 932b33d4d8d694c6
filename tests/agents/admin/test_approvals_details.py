"""The details of one approval: what led to the call."""

from typing import Any

import pytest

from agents.models import Agent, Step, ToolName
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from tests import admin_client, factories

PAGE = "agents_approval_change"


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.fixture
def reviewer(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.REVIEWER)


def test_calls_that_led_to_it_have_their_servers_names_and_outcomes(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    session, approval = factories.create_waiting_session(helper)
    server = admin_client.create_web_server(helper.organization)
    names = {"organization": helper.organization, "agent": helper, "server": server}
    ToolName.objects.create(**names, name="mcp_web_mail", own_name="send_mail")
    Step.objects.filter(session=session).update(seq=5)
    waiting = factories.create_approval(helper, session, own_name="send_mail")
    call: dict[str, Any] = {"kind": Step.Kind.CALL}
    payload: dict[str, Any] = {"name": "mcp_web_mail", "arguments": {}}
    pending = {"approval": {"approval_id": str(waiting.pk)}}
    session.steps.create(seq=2, turn=2, state="intent", payload=payload | pending, **call)
    denied = {"code": "approval_denied"}
    session.steps.create(seq=3, turn=3, state="failed", payload=payload | denied, **call)
    page = reviewer.get(PAGE, approval.pk)
    trace = page.partition("bb-trace")[2].partition("</ol>")[0]
    text = admin_client.get_text(trace)
    assert f"send_mail {server.name} · pending" in text
    assert f"send_mail {server.name} · denied" in text
    assert "approval_denied" not in text
    assert "mcp_web_mail" not in text
    assert "cancel" not in text


def test_the_message_to_one_model_is_focused_in_the_dialog_that_denies_its_call(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    _session, approval = factories.create_waiting_session(helper)
    selection = {"action": "deny_chosen", "_selected_action": [str(approval.pk)]}
    url = admin_client.build_url("agents_approval_changelist")
    response = reviewer.client.post(url, selection, headers={"Bonobot-Fragment": "1"})
    fragment = response.content.decode()
    text = admin_client.get_text(fragment)
    assert "Message to model " in text
    assert "The model receives the denial and this message." in text
    assert "autofocus" in fragment.partition("<textarea")[2].partition(">")[0]
