"""The details of a call in the inbox of approvals: labels, decision, and what led to it."""

import re

import pytest

from agents.calls.snapshots import get_snapshot_cache
from agents.models import Agent, Approval, Step, ToolPolicy, ToolRule
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.models import Definition
from tests import admin_client, factories

pytestmark = pytest.mark.django_db

LIST, PAGE = "agents_approval_changelist", "agents_approval_change"


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.fixture
def approval(helper: Agent) -> Approval:
    return factories.create_waiting_session(helper)[1]


@pytest.fixture
def reviewer(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.REVIEWER)


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [("pay", "Ask Agent tools Helper"), ("pa*", "Ask pa* Helper")],
)
def test_a_setting_of_an_agents_tool_is_told_apart_from_a_rule_of_its_policy(
    helper: Agent, reviewer: admin_client.AdminClient, pattern: str, shown: str
) -> None:
    ToolPolicy.objects.update_or_create(
        organization=helper.organization, agent=helper, defaults={"mode": "all"}
    )
    ToolRule.objects.create(
        organization=helper.organization, policy=helper.tool_policy, effect="ask", pattern=pattern
    )
    server = admin_client.create_web_server(helper.organization)
    approval = factories.create_approval(helper, server_id=server.pk, own_name="pay")
    page = reviewer.get(PAGE, approval.pk)
    decision = page.split("<h3>Decision</h3>", 1)[1].split("</section>", 1)[0]
    assert shown in admin_client.get_text(decision)
    tools_url = admin_client.build_url("agents_agent_servers", helper.pk)
    assert (tools_url in decision) == (pattern == "pay")


def test_what_led_to_a_call_is_shown_from_the_last_message(
    approval: Approval, reviewer: admin_client.AdminClient
) -> None:
    Step.objects.filter(session_id=approval.session_id).update(seq=9)
    for seq, kind, payload in (
        (2, "message", {"text": "An old question", "by": "Priya"}),
        (3, "message", {"text": "Refund it", "by": "Priya"}),
        (4, "call", {"tool": "get_ticket", "server": "Zendesk"}),
        (5, "model", {"text": "It was charged twice."}),
    ):
        Step.objects.create(
            session_id=approval.session_id,
            seq=seq,
            kind=kind,
            state="done",
            turn=seq,
            payload=payload,
        )
    page = admin_client.get_text(reviewer.get(PAGE, approval.pk))
    for expected in ("Refund it", "get_ticket", "It was charged twice."):
        assert expected in page
    assert "An old question" not in page


def test_what_led_to_a_call_has_all_calls_of_its_turn_and_marks_the_call_itself(
    approval: Approval, reviewer: admin_client.AdminClient
) -> None:
    own = Step.objects.filter(session_id=approval.session_id, call_id=approval.call_id)
    own.update(seq=9, turn=3, payload={"name": "mcp_web_add", "arguments": {"a": 1}})
    for seq, name in ((8, "get_ticket"), (10, "list_charges")):
        payload = {"tool": name, "server": "Stripe", "arguments": {"customer": "K"}}
        Step.objects.create(
            session_id=approval.session_id,
            seq=seq,
            kind="call",
            state="done",
            turn=3,
            index=seq,
            payload=payload,
        )
    page = reviewer.get(PAGE, approval.pk)
    trace = page.split("bb-trace", 1)[1].split("</ol>", 1)[0]
    text = admin_client.get_text(trace)
    places = [text.index(words) for words in ("get_ticket Stripe", "this call", "list_charges")]
    assert places == sorted(places)
    assert trace.count('aria-current="true"') == text.count("this call") == 1
    assert "customer K" in text


def list_marks(page: str) -> list[set[str]]:
    """Return the labels of the first call in the list, and those in its details."""
    item = page.split("bb-call-labels", 1)[1].split("</li>", 1)[0]
    facts = page.split("<h3>Labels</h3>", 1)[1].split("</section>", 1)[0]
    found = [re.findall(r'title="([^"]+)"', item), re.findall(r"</span>([^<]+)</span>", facts)]
    return [{text.split(":")[0].strip() for text in texts} for texts in found]


def test_a_call_shows_the_labels_in_effect_of_its_tool_like_the_agents_tools(
    acme: Organization, helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme)
    definition = admin_client.declare_tool(
        server,
        "create_refund",
        description="Refund a charge",
        annotations={"destructiveHint": True, "openWorldHint": True},
    )
    factories.create_approval(helper, server_id=server.pk, own_name="create_refund")
    helper.agent_servers.create(organization=acme, server=server)
    [tool_row] = [
        tool
        for tool in get_snapshot_cache().load_current("agent", helper.pk).tools.values()
        if tool.facts.own_name == "create_refund"
    ]
    assert FlowLabel.SENDS_OUT in tool_row.labels
    assert list_marks(reviewer.get(LIST)) == [{"Destructive", "External effect"}] * 2
    Definition.objects.filter(pk=definition.pk).update(labels=[FlowLabel.PRIVATE_DATA])
    assert list_marks(reviewer.get(LIST)) == [{"Destructive", "Private data"}] * 2


def test_a_call_of_a_built_in_tool_shows_the_labels_that_it_has_for_the_agent(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    factories.create_approval(helper, own_name="http_fetch")
    assert "External effect" in list_marks(reviewer.get(LIST))[1]
