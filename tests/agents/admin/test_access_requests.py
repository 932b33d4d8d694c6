"""Access requests in the admin: a member asks, an operator answers."""

import re

import pytest

from agents.models import AccessRequest, Agent, ToolName
from bonobot.accounts.models import Membership
from bonobot.accounts.roles import Role
from mcp_servers.models import Preset
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


def test_a_member_requests_an_agent_and_sees_the_answer() -> None:
    acme = factories.create_organization()
    factories.create_agent(acme, "helper")  # with the model that new agents use
    member = admin_client.sign_in(acme, Role.MEMBER)
    reviewer = admin_client.sign_in(acme, Role.REVIEWER)
    operator = admin_client.sign_in(acme, Role.OPERATOR)
    address = admin_client.build_url("agents_accessrequest_add")
    assert admin_client.find_links(member.get("agents_agent_changelist"), address)
    assert not admin_client.find_links(operator.get("agents_agent_changelist"), address)
    for name in ("Support", "Sales"):
        member.post("agents_accessrequest_add", kind="agent", target=name, reason="For customers.")
    page = member.post("agents_accessrequest_add", kind="tool", target="echo", reason="x")
    assert "Servers and tools are requested for an agent." in page
    support, sales = AccessRequest.objects.order_by("created_at")

    inbox = reviewer.get("agents_approval_changelist").split('class="bb-tabs"', 1)[1]
    address = admin_client.build_url("agents_accessrequest_changelist")
    tabs = inbox.split("</nav>", 1)[0]
    assert admin_client.find_links(tabs, address)
    assert "Access requests 2" in admin_client.get_text(tabs)
    for row in (support, sales):
        address = admin_client.build_url("agents_accessrequest_change", row.pk)
        assert admin_client.find_links(inbox.split("data-inbox-requests", 1)[1], address)
    assert support.target not in member.get("agents_approval_changelist")
    page = reviewer.get("agents_accessrequest_change", sales.pk)
    assert "Deny request" in page
    assert "Approve request" in page
    assert "Cancel request" not in page
    assert "2 access requests" in reviewer.get("index")
    reviewer.post("agents_accessrequest_deny", sales.pk, message="Use Support.")
    page = operator.get("agents_accessrequest_change", support.pk)
    assert "Creates the agent Support and gives" in page
    operator.post("agents_accessrequest_approve", support.pk)

    assert Agent.objects.get(name="Support").members.count() == 1
    page = member.get("agents_accessrequest_change", support.pk)
    agent = Agent.objects.get(name="Support")
    assert admin_client.find_links(page, admin_client.build_url("agents_agent_change", agent.pk))
    requests = member.get("agents_agent_changelist").split('id="own-requests"', 1)[1]
    text = admin_client.get_text(requests)
    assert re.search(
        r"Sales.*Use Support.*Denied.*Support.*Approved|Support.*Approved.*Sales", text
    )
    assert "own-requests" not in operator.get("agents_agent_changelist")
    page = member.get("agents_accessrequest_change", sales.pk)
    assert "Use Support." in page
    assert "Your answer" not in page
    assert "Support" in member.get("agents_agent_changelist")


def test_several_requests_are_answered_at_once_and_a_requester_cancels_one() -> None:
    acme = factories.create_organization()
    factories.create_agent(acme, "helper")  # with the model that new agents use
    member = admin_client.sign_in(acme, Role.MEMBER)
    reviewer = admin_client.sign_in(acme, Role.REVIEWER)
    for name in ("Support", "Sales", "News", "Gone"):
        member.post("agents_accessrequest_add", kind="agent", target=name, reason="For customers.")
    ids = {row.target: str(row.pk) for row in AccessRequest.objects.all()}
    assert "Cancel request" in member.get("agents_accessrequest_change", ids["Gone"])
    member.post("agents_accessrequest_cancel", ids["Gone"])
    address = "agents_accessrequest_changelist"
    approval = {"action": "approve_requests", "_selected_action": [ids["Support"], ids["Sales"]]}
    page = reviewer.post(address, **approval)
    assert "Creates the agent Support and gives" in page
    reviewer.post(address, **approval, confirmed="1")
    denial = {"action": "deny_requests", "_selected_action": [ids["News"]], "confirmed": "1"}
    assert "A denial needs a reason." in reviewer.post(address, **denial)
    reviewer.post(address, **denial, message="Use Support.")
    states = dict(AccessRequest.objects.values_list("target", "state"))
    assert states == {
        "Support": "approved",
        "Sales": "approved",
        "News": "denied",
        "Gone": "withdrawn",
    }


@pytest.mark.parametrize(
    ("kind", "target", "obstacle"),
    [
        ("server", "nothing", "No server is named"),
        ("server", "needs-token", "TOKEN"),
        ("tool", "nothing", "No tool is named"),
    ],
)
def test_a_request_that_cant_be_set_up_can_only_be_denied(
    kind: str, target: str, obstacle: str
) -> None:
    acme = factories.create_organization()
    helper = factories.create_agent(acme, "helper")
    Preset.objects.create(
        organization=acme,
        slug="needs-token",
        name="Needs token",
        transport_type="http",
        endpoint_config={"url": "https://example.com/mcp"},
        auth_type="bearer_token",
        auth_config={"token": "${TOKEN}"},
        parameters=[{"name": "TOKEN", "label": "TOKEN", "secret": True, "required": True}],
    )
    access_request = factories.create_access_request(acme, kind=kind, target=target, agent=helper)
    for role in (Role.REVIEWER, Role.OPERATOR):
        admin = admin_client.sign_in(acme, role)
        page = admin.get("agents_accessrequest_change", access_request.pk)
        assert obstacle in admin_client.get_text(page)
        assert "Approve request" not in page
        assert "Deny request" in page
        add_link = admin_client.find_links(
            page, admin_client.build_url("mcp_servers_server_presets")
        )
        assert bool(add_link) == (role is Role.OPERATOR and kind == "server")


def test_the_form_suggests_only_names_that_the_member_may_know() -> None:
    acme = factories.create_organization()
    own_agent, _ = (factories.create_agent(acme, slug) for slug in ("mine", "theirs"))
    member = admin_client.sign_in(acme, Role.MEMBER)
    own_agent.members.add(
        *Membership.objects.filter(role=Role.MEMBER).values_list("user", flat=True)
    )
    server = admin_client.create_web_server(acme)
    factories.attach_server(factories.build_administrator(acme), own_agent, server)
    ToolName.objects.create(
        organization=acme, agent=own_agent, server=server, own_name="echo", name="mcp_web_echo"
    )
    page = member.get("agents_accessrequest_add")
    lists = dict(re.findall(r'<datalist id="kind-(\w+)">(.*?)</datalist>', page, re.DOTALL))
    names = {kind: re.findall(r'value="([^"]*)"', text) for kind, text in lists.items()}
    assert names["tool"] == ["echo"]
    assert "GitHub" in names["server"]
    assert server.name not in names["server"]
    assert "theirs" not in page


def test_the_form_selects_the_only_agent_and_offers_those_of_the_member_in_a_searched_list() -> (
    None
):
    acme = factories.create_organization()
    member = admin_client.sign_in(acme, Role.MEMBER)
    agents = [factories.create_agent(acme, slug) for slug in ("mine", "other", "theirs")]
    assert '<option value="agent" selected>' in member.get("agents_accessrequest_add")
    agents[0].members.add(member.user)
    page = member.get("agents_accessrequest_add")
    assert '<option value="server" selected>' in page
    assert '<option value="mine" selected>Mine</option>' in page
    agents[1].members.add(member.user)
    page = member.get("agents_accessrequest_add")
    select = page.partition('<select name="agent"')[2].partition("</select>")[0]
    assert "data-searchable-options" in select
    assert re.findall(r'<option value="(\w*)"', select) == ["", "mine", "other"]
    assert " selected>Mine" not in select


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("server", "Select a server, or enter the name of one to add."),
        ("tool", "Select a tool, or enter the name of one to add."),
        ("agent", "Enter the name of an agent that you can&#x27;t use yet, or of a new one."),
    ],
)
def test_the_help_text_of_the_name_fits_what_is_requested(kind: str, text: str) -> None:
    member = admin_client.sign_in(factories.create_organization(), Role.MEMBER)
    page = member.get("agents_accessrequest_add", kind=kind)
    assert f'<span data-shows="kind={kind}">{text}</span>' in page
    assert page.count('" hidden>') >= 2


def test_each_pending_request_in_the_list_has_its_reason_and_answers() -> None:
    acme = factories.create_organization()
    factories.create_agent(acme, "helper")  # with the model that new agents use
    member = admin_client.sign_in(acme, Role.MEMBER)
    reviewer = admin_client.sign_in(acme, Role.REVIEWER)
    address = "agents_accessrequest_changelist"
    for name in ("Support", "Sales"):
        member.post("agents_accessrequest_add", kind="agent", target=name, reason=f"For {name}.")
    ids = {row.target: str(row.pk) for row in AccessRequest.objects.all()}
    page = reviewer.get(address)
    for name, pk in ids.items():
        assert f"<q>For {name}.</q>" in page
        assert f'value="approve_requests {pk}"' in page
        assert f'value="deny_requests {pk}"' in page
    assert "_requests " not in member.get(address)
    page = reviewer.post(address, row=f"deny_requests {ids['Sales']}")
    assert "Deny this request?" in page
    assert "For Sales." in page
    assert "For Support." not in page
    reviewer.post(address, action="approve_requests", _selected_action=ids["Support"], confirmed=1)
    page = reviewer.get(address)
    assert f'value="approve_requests {ids["Support"]}"' not in page
    assert f'value="approve_requests {ids["Sales"]}"' in page


def test_a_reviewers_own_request_has_no_approve_in_the_list() -> None:
    acme = factories.create_organization()
    member = admin_client.sign_in(acme, Role.MEMBER)
    reviewer = admin_client.sign_in(acme, Role.REVIEWER)
    member.post("agents_accessrequest_add", kind="agent", target="Mine", reason="For me.")
    AccessRequest.objects.update(requested_by_id=str(reviewer.user.pk))  # a member until then
    page = reviewer.get("agents_accessrequest_changelist")
    assert "deny_requests" in page
    assert 'value="approve_requests ' not in page
