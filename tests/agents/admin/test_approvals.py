"""Approvals in the admin: the inbox, details, answers, bulk answers, and session approvals."""

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from uuid import uuid4

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from agents.admin.approvals import format_arguments
from agents.approvals.services import resolve_approval
from agents.models import (
    Agent,
    Approval,
    Session,
    SessionApproval,
    Step,
    ToolName,
    ToolPolicy,
    ToolRule,
)
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.models import ApprovalCell
from mcp_servers.models import Definition
from tests import admin_client, factories

pytestmark = pytest.mark.django_db

LIST, PAGE, ANSWER = (f"agents_approval_{name}" for name in ("changelist", "change", "answer"))


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


def get_messages(reviewer: admin_client.AdminClient) -> str:
    return " ".join(reviewer.messages)


def test_an_empty_inbox_explains_when_approvals_appear(
    acme: Organization, reviewer: admin_client.AdminClient
) -> None:
    assert "No pending approvals" in reviewer.get(LIST)
    assert "No answered approvals" in reviewer.get(LIST, tab="answered")


def test_the_buttons_name_their_keys_in_tooltips(
    approval: Approval, reviewer: admin_client.AdminClient
) -> None:
    page = reviewer.get(LIST)
    for key in "ADES":
        assert f'aria-keyshortcuts="{key}"' in page
        assert f"Key: {key}" in page


def test_pending_and_answered_calls_have_tabs(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    factories.create_approval(helper, own_name="still_waits")
    answered = {"decided_by": "Jonas", "decided_at": timezone.now(), "message": "Not this one."}
    factories.create_approval(helper, own_name="was_answered", state="denied", **answered)
    page = admin_client.get_text(reviewer.get(LIST))
    assert "still_waits" in page
    assert "was_answered" not in page
    assert "Approvals 1" in page
    second_tab = admin_client.get_text(reviewer.get(LIST, tab="answered"))
    assert "still_waits" not in second_tab
    for expected in ("was_answered", "Denied", "Jonas", "Not this one."):
        assert expected in second_tab
    dashboard = admin_client.get_text(reviewer.get("index"))
    assert "1 pending approval" in dashboard


@pytest.mark.parametrize(
    ("list_name", "query", "current"),
    [
        (LIST, {}, "Pending"),
        (LIST, {"tab": "answered"}, "Answered"),
        ("agents_elicitationrequest_changelist", {}, "Elicitation requests"),
        ("agents_accessrequest_changelist", {}, "Access requests"),
    ],
)
def test_the_lists_of_the_section_have_the_same_tabs(
    helper: Agent,
    reviewer: admin_client.AdminClient,
    list_name: str,
    query: dict[str, str],
    current: str,
) -> None:
    factories.create_approval(helper)
    page = reviewer.get(list_name, **query)
    tabs = page.split('<nav class="bb-tabs"', 1)[1].split("</nav>", 1)[0]
    words = admin_client.get_text(tabs).split('sections">', 1)[-1].strip()
    assert words == "Pending 1 Answered Elicitation requests Access requests"
    marked = tabs.split('aria-current="page"', 1)[1].split("</a>", 1)[0]
    assert current in marked
    assert tabs.count("aria-current") == 1


@pytest.mark.parametrize(("tab", "state"), [("pending", "waiting"), ("answered", "denied")])
def test_calls_of_a_tool_are_told_apart_by_their_arguments(
    helper: Agent, reviewer: admin_client.AdminClient, tab: str, state: str
) -> None:
    for number in (417, 418):
        factories.create_approval(helper, state=state, arguments={"number": number})
    text = admin_client.get_text(reviewer.get(LIST, tab=tab))
    assert "number 417" in text
    assert "number 418" in text


def test_an_approval_with_changes_shows_the_arguments_before_and_after(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    answer = {"state": "approved", "decided_by": "Jonas", "decided_at": timezone.now()}
    changes = {"requested_arguments": {"a": 7}, "arguments": {"a": 70}}
    approval = factories.create_approval(helper, **answer, **changes)
    page = reviewer.get(PAGE, approval.pk)
    text = admin_client.get_text(page)
    assert text.count("Approved with changes") == 2  # in the list, and in the details
    assert "Approved with changes by Jonas" in text
    for kind, number in (("removed", 7), ("added", 70)):
        assert f'<span class="bb-{kind}">"a": {number}</span>' in unescape(page)


def test_an_answered_call_has_the_time_of_its_answer_and_the_servers_name_of_its_tool(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    session, approval = factories.create_waiting_session(helper)
    answer = {"state": "approved", "decided_by": "Jonas"}
    Approval.objects.filter(pk=approval.pk).update(
        created_at=datetime(2020, 3, 2, 7, 33, 21, tzinfo=UTC),
        decided_at=datetime(2020, 3, 2, 7, 34, 25, tzinfo=UTC),
        own_name="get-sum",
        rule="policy:allowlist:ask mcp:get-sum",
        reason="The rule `ask mcp:get-sum` requires approval for `mcp_web_get_sum`.",
        **answer,
    )
    message = {"kind": Step.Kind.MESSAGE, "state": Step.State.DONE, "payload": {"text": "Add"}}
    session.steps.create(seq=0, **message)
    text = admin_client.get_text(reviewer.get(PAGE, approval.pk))
    assert "this call · approved" in text
    assert "2020-03-02 07:34" in text.split("this call", 1)[1]
    assert "Answered 2020-03-02 07:34:25 UTC" in text
    assert "The tool get-sum is set to Ask for this agent." in text
    assert "mcp_web_get_sum" not in text


def test_the_details_say_who_answered_the_last_call_of_the_tool(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    answered = {"decided_by": "Jonas", "decided_at": timezone.now() - timedelta(days=2)}
    factories.create_approval(helper, state="denied", **answered)
    approval = factories.create_approval(helper)
    page = admin_client.get_text(reviewer.get(PAGE, approval.pk))
    assert "0 approved, 1 denied" in page
    assert "Jonas" in page.split("2 days ago", 1)[1]


def test_the_most_urgent_call_is_first_and_selected(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    for name, minutes in (("later", 50), ("sooner", 5)):
        expires_at = timezone.now() + timedelta(minutes=minutes)
        factories.create_approval(helper, own_name=name, expires_at=expires_at)
    page = admin_client.get_text(reviewer.get(LIST))
    assert page.index("sooner") < page.index("later")
    assert "5 min left" in page
    assert page.count("sooner") > page.count("later")  # its details are beside the list


def test_a_script_gets_only_the_list_or_the_details(
    helper: Agent, approval: Approval, reviewer: admin_client.AdminClient
) -> None:
    headers = {"Bonobot-Fragment": "1"}
    items = reviewer.client.get(admin_client.build_url(LIST), headers=headers).content.decode()
    assert items.count("data-inbox-item=") == 1
    assert "data-inbox-call" not in items
    page_url = admin_client.build_url(PAGE, approval.pk)
    details = reviewer.client.get(page_url, headers=headers).content.decode()
    assert f'data-inbox-call="{approval.pk}"' in details
    assert "data-inbox-item" not in details
    answer_url = admin_client.build_url(ANSWER, approval.pk)
    answer = reviewer.client.post(answer_url, {"answer": "approve"}, headers=headers)
    assert "Approved for this call only." in answer.content.decode()
    again = reviewer.client.post(answer_url, {"answer": "approve"}, headers=headers)
    assert again.status_code == 409
    assert "already_answered" in again.content.decode()


def test_the_argument_that_a_rule_matched_is_marked(
    acme: Organization, helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme)
    condition = {"properties": {"amount": {"minimum": 200}}, "required": ["amount"]}
    policy, _created = ToolPolicy.objects.update_or_create(
        organization=acme, agent=helper, defaults={"mode": "all"}
    )
    ToolRule.objects.create(
        organization=acme, policy=policy, effect="ask", pattern="pay", condition=condition
    )
    approval = factories.create_approval(
        helper, server_id=server.pk, own_name="pay", arguments={"to": "ann", "amount": 480}
    )
    page = reviewer.get(PAGE, approval.pk)
    assert page.count("bb-marked") == 1
    assert "matches amount ≥ 200" in admin_client.get_text(page)
    assert "pay if amount ≥ 200" in admin_client.get_text(page)
    [copied] = re.findall(
        r"<textarea id=\"arguments-[^>]+ hidden>(.+?)</textarea>", page, re.DOTALL
    )
    assert json.loads(unescape(copied)) == {"to": "ann", "amount": 480}
    Approval.objects.update(arguments={"to": "ann", "amount": 5})
    assert "bb-marked" not in reviewer.get(PAGE, approval.pk)


def test_a_condition_about_a_missing_argument_is_shown_in_words(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    policy, _created = ToolPolicy.objects.update_or_create(
        organization=helper.organization, agent=helper, defaults={"mode": "all"}
    )
    ToolRule.objects.create(
        organization=helper.organization,
        policy=policy,
        effect="ask",
        pattern="*",
        condition={"required": ["to"]},
    )
    server = admin_client.create_web_server(helper.organization)
    approval = factories.create_approval(helper, server_id=server.pk, arguments={"to": "ann"})
    text = admin_client.get_text(reviewer.get(PAGE, approval.pk))
    assert "All tools if to is set" in text
    assert "matches to is set" in text


def test_the_details_name_who_may_approve(
    acme: Organization, approval: Approval, reviewer: admin_client.AdminClient
) -> None:
    text = admin_client.get_text(reviewer.get(PAGE, approval.pk))
    assert "Approvers Owner, reviewer Expires" in text
    Organization.objects.update(four_eyes=True)
    text = admin_client.get_text(reviewer.get(PAGE, approval.pk))
    assert "Approvers Owner, reviewer, except who requested it" in text


def test_actors_are_named_as_in_the_audit_log(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    requester = {"requested_by_kind": "cli", "requested_by_id": "root", "requested_by": "cli:root"}
    approval = factories.create_approval(helper, None, **requester)
    assert "called by Helper for root" in admin_client.get_text(reviewer.get(LIST))
    resolve_approval(factories.build_administrator(helper.organization), approval, "deny")
    assert "cli:" not in admin_client.get_text(reviewer.get(LIST, tab="answered"))
    assert "cli:" not in admin_client.get_text(reviewer.get(PAGE, approval.pk))


@pytest.mark.parametrize(
    "query",
    [
        {"q": "wanted"},
        {"agent__name__icontains": "help"},
        {"server_name__icontains": "web"},
        {"own_name__icontains": "want"},
        {"rule__icontains": "policy:"},
    ],
)
def test_the_list_is_filtered(
    acme: Organization, helper: Agent, reviewer: admin_client.AdminClient, query: dict[str, str]
) -> None:
    factories.create_approval(helper, own_name="wanted", server_name="web")
    other_agent = factories.create_agent(acme, "other")
    factories.create_approval(other_agent, own_name="left_out", rule="flow")
    page = admin_client.get_text(reviewer.get(LIST, **query))
    assert "wanted" in page
    assert "left_out" not in page


def test_the_page_shows_everything_that_an_approval_is_bound_to(
    helper: Agent, acme: Organization, reviewer: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme)
    definition = admin_client.declare_tool(server, description="Adds <b>two</b> numbers.\u200b")
    fields = {
        "server_id": server.pk,
        "server_name": "web",
        "definition_digest": definition.digest,
        "arguments": {"text": "<script>alert(1)</script>\u202e"},
    }
    session, approval = factories.create_waiting_session(helper, "Add it <up>", **fields)
    page = reviewer.get(PAGE, approval.pk)
    words = admin_client.get_text(page)
    for expected in ("Helper", "Add it <up>", "web", "policy:ask", "The policy asks"):
        assert expected in words
    assert "a" * 64 in page
    assert "⟨U+202E⟩" in page
    assert "<script>alert" not in page
    assert "Adds <b>two</b> numbers.⟨U+200B⟩" in words
    assert "unchanged" in words
    assert admin_client.build_url("agents_session_change", session.pk) in page
    Definition.objects.update(digest="new")
    assert "changed since request" in admin_client.get_text(reviewer.get(PAGE, approval.pk))


def test_large_arguments_are_truncated_and_can_be_downloaded(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    approval = factories.create_approval(helper, arguments={"text": "x" * 80_000})
    page = admin_client.get_text(reviewer.get(PAGE, approval.pk))
    assert "Only the beginning is shown" in page
    assert len(page) < 80_000
    download = reviewer.client.get(admin_client.build_url("agents_approval_arguments", approval.pk))
    assert download.json() == approval.arguments
    assert "attachment" in download["Content-Disposition"]


def test_an_approved_call_without_a_session_runs_when_the_client_retries_it(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    reviewer.post(ANSWER, factories.create_approval(helper).pk, answer="approve")
    assert "Approved. It runs when the client retries the call." in get_messages(reviewer)


def test_an_approval_allows_the_call_once_and_queues_the_session(
    approval: Approval, reviewer: admin_client.AdminClient
) -> None:
    reviewer.post(ANSWER, approval.pk, answer="approve")
    assert "Approved for this call only." in get_messages(reviewer)
    assert ApprovalCell.objects.filter(pk=approval.pk).exists()
    assert Session.objects.get().status == Session.Status.QUEUED


def test_a_denial_has_its_message(approval: Approval, reviewer: admin_client.AdminClient) -> None:
    page = admin_client.get_text(
        reviewer.post(ANSWER, approval.pk, answer="deny", message="Ask <me> first.")
    )
    approval.refresh_from_db()
    assert (approval.state, approval.message) == (Approval.State.DENIED, "Ask <me> first.")
    assert "Ask <me> first." in page


def test_a_session_approval_is_listed_and_revoked(
    approval: Approval, helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    reviewer.post(ANSWER, approval.pk, answer="approve_session")
    session_approval = SessionApproval.objects.get()
    for name, pk in (
        ("agents_session_change", approval.session_id),
        ("agents_agent_sessions", helper.pk),
    ):
        assert "Revoke" in reviewer.get(name, pk)
    reviewer.post("agents_session_revoke", approval.session_id, grant=str(uuid4()), status=404)
    reviewer.post("agents_session_revoke", approval.session_id, grant=str(session_approval.pk))
    assert not SessionApproval.objects.exists()


def test_a_second_answer_is_refused(
    acme: Organization, approval: Approval, reviewer: admin_client.AdminClient
) -> None:
    resolve_approval(factories.build_administrator(acme), approval, "deny")
    reviewer.post(ANSWER, approval.pk, answer="approve")
    assert "already_answered" in get_messages(reviewer)
    assert 'value="approve"' not in reviewer.get(PAGE, approval.pk)


def test_a_late_answer_is_reported(helper: Agent, reviewer: admin_client.AdminClient) -> None:
    expired = factories.create_approval(helper, expires_at=timezone.now() - timedelta(minutes=1))
    assert "so the call was denied" in admin_client.get_text(reviewer.get(PAGE, expired.pk))
    reviewer.post(ANSWER, expired.pk, answer="approve")
    assert "approval_expired" in get_messages(reviewer)


def test_a_persons_own_call_cant_be_approved_under_four_eyes(
    acme: Organization, helper: Agent
) -> None:
    Organization.objects.update(four_eyes=True)
    owner = admin_client.sign_in(acme, Role.OWNER)
    requester = {"requested_by_kind": "user", "requested_by_id": str(owner.user.pk)}
    approval = factories.create_approval(helper, **requester)
    page = owner.get(PAGE, approval.pk)
    assert re.search(r'value="approve"[^>]* disabled>', page)
    assert "You requested this call" in page
    assert "Deny call" in page
    assert "own_call" in owner.post(ANSWER, approval.pk, answer="approve", status=403)


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.AUDITOR])
def test_a_person_without_permission_sees_who_can_approve(
    acme: Organization, approval: Approval, role: Role
) -> None:
    viewer = admin_client.sign_in(acme, role)
    assert "An owner or reviewer" in viewer.get(PAGE, approval.pk)
    assert "forbidden" in viewer.post(ANSWER, approval.pk, answer="approve", status=403)
    assert Approval.objects.get().state == Approval.State.WAITING


def test_a_member_sees_only_approvals_of_their_own_calls(
    acme: Organization, helper: Agent, approval: Approval
) -> None:
    member = admin_client.sign_in(acme, Role.MEMBER)
    own_approval = factories.create_approval(
        helper, requested_by_kind="user", requested_by_id=str(member.user.pk)
    )
    assert "An owner or reviewer" in member.get(PAGE, own_approval.pk)
    member.get(PAGE, approval.pk, status=404)


def test_many_approvals_are_denied_together_after_confirmation(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    approvals = [factories.create_approval(helper, label=f"call_{n}") for n in range(3)]
    selection = {
        "action": "deny_chosen",
        "_selected_action": [str(approval.pk) for approval in approvals[:2]],
    }
    page = reviewer.send(admin_client.build_url(LIST), selection)
    assert "Deny all 2" in page
    assert Approval.objects.pending().count() == 3
    reviewer.send(
        admin_client.build_url(LIST), selection | {"confirmed": "1", "message": "Not today."}
    )
    assert "2 calls denied." in get_messages(reviewer)
    assert list(Approval.objects.pending()) == [approvals[2]]
    assert set(Approval.objects.filter(state="denied").values_list("message", flat=True)) == {
        "Not today."
    }


def test_many_approvals_are_approved_together_but_not_ones_own(
    acme: Organization, helper: Agent
) -> None:
    Organization.objects.update(four_eyes=True)
    owner = admin_client.sign_in(acme, Role.OWNER)
    own = factories.create_approval(
        helper, requested_by_kind="user", requested_by_id=str(owner.user.pk)
    )
    other_approvals = [factories.create_approval(helper) for _ in range(2)]
    selection = {
        "action": "approve_chosen",
        "_selected_action": [str(approval.pk) for approval in (own, *other_approvals)],
    }
    page = owner.send(admin_client.build_url(LIST), selection)
    assert "Approve all 3" in page
    assert Approval.objects.pending().count() == 3
    owner.send(admin_client.build_url(LIST), selection | {"confirmed": "1", "message": "Checked."})
    assert "2 calls approved." in get_messages(owner)
    assert "Not answered: 1." in get_messages(owner)
    assert list(Approval.objects.pending()) == [own]
    assert ApprovalCell.objects.count() == 2
    approved = Approval.objects.filter(state="approved")
    assert set(approved.values_list("message", flat=True)) == {"Checked."}


def test_calls_on_all_pages_are_selected_with_the_filters_of_the_list(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    for n in range(60):
        factories.create_approval(helper, own_name="pay" if n else "refund")
    assert "Select 10 calls on other pages, too" in reviewer.get(LIST)
    url = f"{admin_client.build_url(LIST)}?own_name__icontains=pay"
    first = Approval.objects.filter(own_name="pay")[0]
    selection = {"action": "approve_chosen", "select_across": "1"}
    page = reviewer.send(url, selection | {"_selected_action": str(first.pk)})
    assert "Approve all 59 calls" in page
    listed = re.findall(r'name="_selected_action" value="([^"]+)"', page)
    assert len(set(listed)) == 59
    reviewer.send(
        admin_client.build_url(LIST),
        {"action": "approve_chosen", "confirmed": "1", "_selected_action": listed},
    )
    assert "59 calls approved." in get_messages(reviewer)
    assert [approval.own_name for approval in Approval.objects.pending()] == ["refund"]


def test_at_most_200_calls_are_answered_at_once_those_that_expire_first(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    now = timezone.now()
    approvals = [
        factories.create_approval(helper, expires_at=now + timedelta(hours=1, minutes=n))
        for n in range(202)
    ]
    assert "Select the first 200 calls on all pages" in reviewer.get(LIST)
    selection = {"action": "deny_chosen", "select_across": "1"}
    page = reviewer.send(
        admin_client.build_url(LIST), selection | {"_selected_action": str(approvals[0].pk)}
    )
    assert "These are the 200 calls that expire first." in page
    listed = re.findall(r'name="_selected_action" value="([^"]+)"', page)
    assert listed == [str(approval.pk) for approval in approvals[:200]]


def test_a_script_learns_which_shown_calls_are_pending_on_any_page(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    shown = [factories.create_approval(helper) for _ in range(52)]
    resolve_approval(factories.build_administrator(helper.organization), shown[0], "deny")
    headers = {
        "Bonobot-Fragment": "1",
        "Bonobot-Shown": f"{shown[0].pk} {shown[1].pk} {shown[51].pk} no-id",
    }
    response = reviewer.client.get(admin_client.build_url(LIST), {"p": "2"}, headers=headers)
    [text] = re.findall(r'data-still-pending="([^"]*)"', response.content.decode())
    assert set(text.split()) == {str(shown[1].pk), str(shown[51].pk)}


def test_a_person_without_permission_has_no_deny_action(
    acme: Organization, approval: Approval
) -> None:
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    assert "deny_chosen" not in auditor.get(LIST)
    auditor.send(
        admin_client.build_url(LIST),
        {"action": "deny_chosen", "_selected_action": str(approval.pk), "confirmed": "1"},
        status=403,
    )
    assert Approval.objects.pending().count() == 1


def test_the_chat_shows_the_approval_inline_and_reloads(
    approval: Approval, acme: Organization, reviewer: admin_client.AdminClient
) -> None:
    page = reviewer.get("agents_session_change", approval.session_id)
    assert 'value="approve"' in page
    assert 'data-rests="waiting"' in page
    form = page.partition('value="approve_changed"')[0].rpartition("<form")[2]
    assert 'name="arguments"' in form
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    assert 'value="approve"' not in auditor.get("agents_session_change", approval.session_id)
    reviewer.post(ANSWER, approval.pk, answer="approve")
    steps = reviewer.get("agents_session_steps", approval.session_id)
    assert 'value="approve"' not in steps
    assert 'data-rests="false"' in steps


def test_the_list_uses_a_fixed_number_of_queries(
    helper: Agent,
    reviewer: admin_client.AdminClient,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    for number in range(20):
        factories.create_waiting_session(helper, f"Question {number}")
    with django_assert_max_num_queries(22):  # of which ten are about the selected call
        reviewer.get(LIST)


def test_an_owner_sets_the_approval_rules(acme: Organization) -> None:
    owner = admin_client.sign_in(acme, Role.OWNER)
    assert admin_client.build_url("tenancy_organization_changelist") in owner.get("settings")
    fields = {"name": "Acme", "slug": "acme", "four_eyes": "on", "registry": "off"}
    page = owner.post("tenancy_organization_change", acme.pk, **fields, approval_hours=721)
    assert "720" in page
    owner.post("tenancy_organization_change", acme.pk, **fields, approval_hours=2)
    acme.refresh_from_db()
    assert (acme.four_eyes, acme.approval_hours) == (True, 2)


def test_a_script_gets_the_confirmation_of_many_answers_for_a_dialog(
    approval: Approval, reviewer: admin_client.AdminClient
) -> None:
    selection = {"action": "approve_chosen", "_selected_action": [str(approval.pk)]}
    url = admin_client.build_url(LIST)
    response = reviewer.client.post(f"{url}?q=add", selection, headers={"Bonobot-Fragment": "1"})
    fragment = response.content.decode()
    assert fragment.lstrip().startswith("<h2 id=")
    assert "Approve call" in fragment
    assert f'action="{url}?q=add"' in fragment
    assert "<html" not in fragment
    assert Approval.objects.pending().exists()


@pytest.mark.parametrize("answer", ["approve", "approve_session"])
def test_a_call_isnt_approved_without_the_changes_in_its_form(
    approval: Approval, reviewer: admin_client.AdminClient, answer: str
) -> None:
    page = reviewer.post(ANSWER, approval.pk, answer=answer, arguments='{"a": 2}')
    assert Approval.objects.pending().filter(pk=approval.pk).exists()
    assert "approved the call without the changes" in page
    shown = format_arguments(approval).replace("\n", "\r\n")
    reviewer.post(ANSWER, approval.pk, answer=answer, arguments=shown)
    assert not Approval.objects.pending().exists()


def test_who_answered_is_followed_by_a_comma(
    approval: Approval, reviewer: admin_client.AdminClient
) -> None:
    reviewer.post(ANSWER, approval.pk, answer="approve")
    note = reviewer.get(PAGE, approval.pk).partition("Approved by ")[2]
    assert re.match(r"[^\s<]+, <", note)


def test_a_rule_is_a_sentence_whose_id_is_its_tooltip(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    rule = "policy:allowlist:ask mcp:add"
    session, approval = factories.create_waiting_session(helper, rule=rule)
    for page in (
        reviewer.get(PAGE, approval.pk),
        reviewer.get("agents_session_change", session.pk),
    ):
        assert f'title="{rule}"' in page
        assert f">{rule}<" not in page


def test_a_refusal_in_the_chat_names_the_tool_as_its_call(
    helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    session, _approval = factories.create_waiting_session(helper)
    server = admin_client.create_web_server(helper.organization)
    ToolName.objects.create(
        organization=helper.organization,
        agent=helper,
        server=server,
        name="mcp_web_add",
        own_name="add",
    )
    payload = {
        "name": "mcp_web_add",
        "arguments": {"a": 1},
        "text": "The definition of `mcp_web_add` changed, not that of `mcp_web_add_all`.",
        "code": "definition_changed",
        "rule": "definition_changed",
    }
    Step.objects.filter(session=session, kind=Step.Kind.CALL).update(
        state=Step.State.FAILED, payload=payload
    )
    words = admin_client.get_text(reviewer.get("agents_session_change", session.pk))
    assert "The definition of `add` changed, not that of `mcp_web_add_all`." in words


@pytest.mark.parametrize("answer", ["approve", "deny"])
def test_calls_and_access_requests_are_confirmed_with_the_same_form(
    acme: Organization, helper: Agent, answer: str
) -> None:
    reviewer = admin_client.sign_in(acme, Role.REVIEWER)
    for name, action, row in (
        (LIST, f"{answer}_chosen", factories.create_approval(helper)),
        (
            "agents_accessrequest_changelist",
            f"{answer}_requests",
            factories.create_access_request(acme),
        ),
    ):
        url = admin_client.build_url(name)
        fields = {"action": action, "_selected_action": str(row.pk)}
        response = reviewer.client.post(url, fields)
        assert "admin/parts/confirm_answers_page.html" in [used.name for used in response.templates]
        form = response.content.decode().split('id="confirm-title"', 1)[1]
        assert f'name="action" value="{action}"' in form
        assert f'name="_selected_action" value="{row.pk}"' in form
        assert form.count('name="message"') == 1
