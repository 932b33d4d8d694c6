"""Access requests: who can make and answer them, and what approving one sets up."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from django.core import mail
from django.utils import timezone

from agents.access_requests import (
    AccessRequestSpec,
    answer_access_request,
    cancel_access_request,
    create_access_request,
    expire_overdue,
)
from agents.admin.access_requests import describe_effect
from agents.calls.snapshots import get_snapshot_cache
from agents.models import AccessRequest, Agent
from agents.policies.services import PolicySpec, set_policy
from agents.services import AgentSpec, attach_server, create_agent
from bonobot.accounts.account_emails import send_due_emails
from bonobot.accounts.models import Organization, User
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.core.problems import InvalidInput, Problem
from bonobot.ledger.models import AuditRow
from bonobot.notifications.models import Notification
from mcp_servers.models import Preset, Server
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def member(acme: Organization) -> Principal:
    return factories.create_member(acme, Role.MEMBER, "anna")


@pytest.fixture
def operator(acme: Organization) -> Principal:
    return factories.create_member(acme, Role.OPERATOR, "olga")


@pytest.fixture
def helper(acme: Organization, member: Principal) -> Agent:
    agent = factories.create_agent(acme, "helper")
    agent.members.add(User.objects.get(pk=member.id))
    return agent


def request_access(
    principal: Principal, kind: str, target: str, agent: Agent | None = None
) -> AccessRequest:
    spec = AccessRequestSpec(kind=kind, target=target, agent=agent, reason="To help customers.")
    return create_access_request(principal, spec)


def test_approving_a_server_attaches_it_once(member, operator, helper, acme):
    server = admin_client.create_web_server(acme, "Web")
    answered = answer_access_request(
        operator, request_access(member, "server", "web", helper), "approve"
    )
    assert (answered.state, answered.answered_by) == ("approved", "olga")
    assert [row.server for row in helper.agent_servers.all()] == [server]
    helper.agent_servers.update(allowed_tools=["add"])
    answer_access_request(operator, request_access(member, "server", "Web", helper), "approve")
    assert helper.agent_servers.get().allowed_tools == ["add"]


def test_approving_a_preset_adds_its_server(member, operator, helper, acme):
    Preset.objects.create(
        organization=acme,
        slug="tracker",
        name="Issue tracker",
        transport_type="http",
        endpoint_config={"url": "https://tracker.example.com/mcp"},
    )
    answer_access_request(
        operator, request_access(member, "server", "issue tracker", helper), "approve"
    )
    assert helper.agent_servers.get().server.preset.slug == "tracker"
    assert Server.objects.for_organization(acme.pk).count() == 1


def test_approving_a_tool_allows_it_and_keeps_a_setting_that_asks(member, operator, helper, acme):
    administrator = factories.build_administrator(acme)
    server = admin_client.create_web_server(acme, "web")
    admin_client.declare_tool(server, "add")
    attach_server(administrator, helper, server)
    set_policy(administrator, helper, PolicySpec("allowlist"))
    answer_access_request(
        operator, request_access(member, "tool", "mcp_web_add", helper), "approve"
    )
    rules = helper.tool_policy.rules
    assert [(rule.effect, rule.pattern) for rule in rules.all()] == [("allow", "add")]
    set_policy(administrator, helper, PolicySpec("allowlist", ask=("mcp_web_add",)))
    answer_access_request(
        operator, request_access(member, "tool", "mcp_web_add", helper), "approve"
    )
    assert [rule.effect for rule in rules.all()] == ["ask"]
    assert "mcp_web_add" in get_snapshot_cache().load_current("agent", helper.pk).tools


def test_a_tool_that_somebody_set_to_off_stays_off(member, operator, helper, acme):
    administrator = factories.build_administrator(acme)
    server = admin_client.create_web_server(acme, "web")
    admin_client.declare_tool(server, "add")
    attach_server(administrator, helper, server)
    set_policy(administrator, helper, PolicySpec("allowlist", deny=("mcp_web_add",)))
    access_request = request_access(member, "tool", "mcp_web_add", helper)
    with pytest.raises(Problem) as refusal:
        answer_access_request(operator, access_request, "approve")
    assert refusal.value.code == "tool_is_off"
    access_request.refresh_from_db()
    assert access_request.state == "waiting"
    assert [rule.effect for rule in helper.tool_policy.rules.all()] == ["deny"]


@pytest.mark.parametrize("own_name", ["mcp_web_add", "add"])
def test_a_server_cant_get_its_tool_allowed_by_naming_it_like_anothers(
    member, operator, helper, acme, own_name
):
    administrator = factories.build_administrator(acme)
    for slug, tool_name in (("a-bad", own_name), ("web", "add")):
        server = admin_client.create_web_server(acme, slug)
        admin_client.declare_tool(server, tool_name)
        attach_server(administrator, helper, server)
    set_policy(administrator, helper, PolicySpec("allowlist"))
    access_request = request_access(member, "tool", "mcp_web_add", helper)
    assert "mcp_web_add " in describe_effect(operator, access_request).text
    answer_access_request(operator, access_request, "approve")
    allowed = [(rule.server.slug, rule.pattern) for rule in helper.tool_policy.rules.all()]
    assert allowed == [("web", "add")]
    access_request = request_access(member, "tool", "add", helper)
    if own_name == "add":
        assert "mcp_web_add" in describe_effect(operator, access_request).text
        with pytest.raises(Problem) as refusal:
            answer_access_request(operator, access_request, "approve")
        assert refusal.value.code == "ambiguous_target"


@pytest.mark.parametrize("kind", ["server", "agent"])
def test_one_of_several_with_the_same_name_isnt_picked(member, operator, helper, acme, kind):
    for slug, name in (("first", "Files"), ("second", "FILES")):
        if kind == "server":
            admin_client.create_web_server(acme, slug)
        else:
            factories.create_agent(acme, slug)
        (Server if kind == "server" else Agent).objects.filter(slug=slug).update(name=name)
    access_request = request_access(member, kind, "files", helper)
    with pytest.raises(Problem) as refusal:
        answer_access_request(operator, access_request, "approve")
    assert refusal.value.code == "ambiguous_target"
    answer_access_request(operator, request_access(member, kind, "second", helper), "approve")


def test_approving_an_agent_gives_the_requester_access_to_it(member, operator, acme):
    existing = factories.create_agent(acme, "support")
    answer_access_request(operator, request_access(member, "agent", "support"), "approve")
    assert [user.username for user in existing.members.all()] == ["anna"]
    answer_access_request(operator, request_access(member, "agent", "Release notes"), "approve")
    created = Agent.objects.get(name="Release notes")
    assert [user.username for user in created.members.all()] == ["anna"]
    colleague = factories.create_member(acme, Role.MEMBER, "ben")
    answer_access_request(operator, request_access(colleague, "agent", "release notes"), "approve")
    assert {user.username for user in created.members.all()} == {"anna", "ben"}
    assert Agent.objects.for_organization(acme.pk).count() == 2


@pytest.mark.parametrize("name", ["helper", "HELPER"])
def test_an_agent_that_the_person_can_already_use_cant_be_requested(member, helper, acme, name):
    factories.create_agent(acme, "support")
    with pytest.raises(InvalidInput, match="You can already use the agent 'Helper'") as refusal:
        request_access(member, "agent", name)
    assert refusal.value.field == "target"
    request_access(member, "agent", "support")


def test_what_cant_be_set_up_stays_pending(member, operator, helper):
    access_request = request_access(member, "server", "nowhere", helper)
    with pytest.raises(Problem) as refusal:
        answer_access_request(operator, access_request, "approve")
    assert refusal.value.code == "unknown_target"
    access_request.refresh_from_db()
    assert access_request.state == "waiting"
    assert not AuditRow.objects.filter(action="access_request_approved").exists()


def test_a_request_for_a_disabled_server_stays_pending(member, operator, helper, acme):
    server = admin_client.create_web_server(acme, "Web")
    access_request = request_access(member, "server", "web", helper)
    Server.objects.filter(pk=server.pk).update(enabled=False)
    with pytest.raises(Problem) as refusal:
        answer_access_request(operator, access_request, "approve")
    assert refusal.value.code == "server_disabled"
    access_request.refresh_from_db()
    assert access_request.state == "waiting"
    assert not helper.agent_servers.exists()


def test_a_server_of_another_organization_isnt_found(member, operator, helper):
    admin_client.create_web_server(factories.create_organization("other"), "secret")
    with pytest.raises(Problem) as refusal:
        answer_access_request(
            operator, request_access(member, "server", "secret", helper), "approve"
        )
    assert refusal.value.code == "unknown_target"


def test_answering_needs_one_of_two_permissions_and_a_denial_a_reason(acme, member, operator):
    reviewer = factories.create_member(acme, Role.REVIEWER, "rita")
    auditor = factories.create_member(acme, Role.AUDITOR, "otto")
    access_request = request_access(member, "agent", "Support")
    for principal, answer in (
        (member, "approve"),
        (auditor, "approve"),
        (member, "deny"),
        (auditor, "deny"),
    ):
        with pytest.raises(Problem) as refusal:
            answer_access_request(principal, access_request, answer, "No.")
        assert (refusal.value.code, refusal.value.status) == ("forbidden", 403)
    with pytest.raises(Problem) as refusal:
        answer_access_request(reviewer, access_request, "deny", " ")
    assert (refusal.value.code, refusal.value.field) == ("invalid", "message")
    denied = answer_access_request(reviewer, access_request, "deny", "Use helper.")
    assert (denied.state, denied.message) == ("denied", "Use helper.")
    with pytest.raises(Problem) as refusal:
        answer_access_request(operator, access_request, "approve")
    assert refusal.value.code == "already_answered"
    with pytest.raises(Problem) as refusal:
        request_access(auditor, "agent", "Support")
    assert refusal.value.code == "forbidden"
    assert not Agent.objects.filter(name="Support").exists()


def test_a_reviewer_approves_what_was_requested_with_both_names_in_the_audit_log(
    acme, member, helper
):
    reviewer = factories.create_member(acme, Role.REVIEWER, "rita")
    server = admin_client.create_web_server(acme, "Web")
    request = request_access(member, "server", "web", helper)
    assert answer_access_request(reviewer, request, "approve").answered_by == "rita"
    answer_access_request(reviewer, request_access(member, "agent", "Support"), "approve")
    assert [row.server for row in helper.agent_servers.all()] == [server]
    assert Agent.objects.get(name="Support").members.get().username == "anna"
    created = AuditRow.objects.get(action="agent_created", resource_name="Support")
    assert (created.actor_id, created.actor_label) == (reviewer.id, "rita for anna")
    answer = AuditRow.objects.filter(action="access_request_approved").first()
    assert answer.actor_label == "rita"
    assert json.loads(answer.opened)["details"]["requested_by"] == "anna"
    with pytest.raises(Problem) as refusal:
        create_agent(reviewer, AgentSpec(name="Other"))
    assert refusal.value.code == "forbidden"


def test_a_reviewer_cant_approve_a_request_of_their_own(acme, member, operator):
    request = request_access(member, "agent", "Support")
    request_of_operator = request_access(operator, "agent", "Sales")
    with pytest.raises(Problem) as refusal:
        answer_access_request(replace(member, role=Role.REVIEWER), request, "approve")
    assert (refusal.value.code, refusal.value.rule) == ("forbidden", "requester")
    factories.create_agent(acme, "model")  # with the model that new agents use
    assert answer_access_request(operator, request_of_operator, "approve").state == "approved"


def test_a_reviewer_cant_add_what_needs_a_platform_administrator(acme, member, helper):
    reviewer = factories.create_member(acme, Role.REVIEWER, "rita")
    Preset.objects.create(
        organization=acme,
        slug="inner",
        name="Inner",
        transport_type="http",
        endpoint_config={"url": "http://127.0.0.1:9/mcp"},
    )
    request = request_access(member, "server", "inner", helper)
    with pytest.raises(Problem) as refusal:
        answer_access_request(reviewer, request, "approve")
    assert refusal.value.code == "private_address"
    assert not helper.agent_servers.exists()


def test_only_the_requester_cancels_a_pending_request(member, operator):
    request = request_access(member, "agent", "Support")
    with pytest.raises(Problem) as refusal:
        cancel_access_request(operator, request)
    assert (refusal.value.code, refusal.value.rule) == ("forbidden", "requester")
    assert cancel_access_request(member, request).state == "withdrawn"
    with pytest.raises(Problem) as refusal:
        answer_access_request(operator, request, "approve")
    assert refusal.value.code == "already_answered"
    request_access(member, "agent", "Support")
    assert AuditRow.objects.filter(action="access_request_canceled").count() == 1


def test_the_same_request_is_pending_once_per_person(acme, member, operator, helper):
    request_access(member, "server", "GitHub", helper)
    with pytest.raises(Problem) as refusal:
        request_access(member, "server", " github ", helper)
    assert refusal.value.code == "already_requested"
    request_access(operator, "server", "github", helper)
    request_access(member, "tool", "github", helper)
    assert AccessRequest.objects.count() == 3


def test_pending_requests_of_a_person_are_limited(member, settings):
    settings.BONOBOT_PENDING_ACCESS_REQUESTS = 1
    first = request_access(member, "agent", "One")
    with pytest.raises(Problem) as refusal:
        request_access(member, "agent", "Two")
    assert refusal.value.code == "too_many_access_requests"
    AccessRequest.objects.filter(pk=first.pk).update(expires_at=timezone.now())
    request_access(member, "agent", "Two")


@pytest.mark.parametrize(
    ("kind", "target", "field"),
    [
        ("tool", "echo", "agent"),
        ("agent", " ", "target"),
        ("agent", "x" * 256, "target"),
        ("skill", "x", "kind"),
    ],
)
def test_an_incomplete_request_is_refused(member, kind, target, field):
    with pytest.raises(Problem) as refusal:
        request_access(member, kind, target)
    assert (refusal.value.code, refusal.value.field) == ("invalid", field)


def test_an_unanswered_request_expires_and_cant_be_approved(member, operator):
    access_request = request_access(member, "agent", "Support")
    AccessRequest.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(Problem) as refusal:
        answer_access_request(operator, access_request, "approve")
    assert refusal.value.code == "access_request_expired"
    assert expire_overdue() == 1
    assert AccessRequest.objects.get().state == "expired"
    assert AuditRow.objects.filter(action="access_request_expired").exists()


def test_approvers_are_notified_and_the_requester_gets_the_answer_by_email(
    acme, member, operator, settings
):
    settings.BONOBOT_EMAIL_URL = "smtp://localhost"
    Notification.objects.all().delete()
    channel = factories.create_notification(acme).channel
    User.objects.filter(pk=member.id).update(email="anna@example.com")
    access_request = request_access(member, "agent", "Support")
    notification = Notification.objects.get(event="access_requested")
    assert (notification.channel, notification.subject_name) == (channel, "Support")
    answer_access_request(operator, access_request, "deny", "Use helper.")
    assert send_due_emails() == 1
    (message,) = mail.outbox
    assert message.to == ["anna@example.com"]
    assert "Support was denied" in message.subject
    assert "Use helper." in message.body
    actions = AuditRow.objects.filter(resource_type="access_request").values_list("action")
    assert {action for (action,) in actions} == {"access_requested", "access_request_denied"}
