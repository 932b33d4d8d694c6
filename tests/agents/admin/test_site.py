"""The admin as a whole: signing in, and what each role can see and do."""

import re
import time
from html import unescape
from pathlib import Path

import pytest
from django.contrib.admin import site
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries, Settings

from agents.admin.dashboard import describe_elicitations
from agents.models import Session
from agents.sessions.quarantine import quarantine_session
from agents.sessions.services import start_session
from bonobot.accounts.models import Membership, User
from bonobot.accounts.models.abstract_models import MAX_COUNTED
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.ledger.models import AuditRow
from bonobot.notifications.models import Notification
from bonobot.processes.process_status import ProcessStatus, write_statuses
from mcp_servers.health.server_status import record_failure
from mcp_servers.models import Server
from tests import admin_client, factories
from tests.screens import LISTS, create_objects

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("role", "name", "fields", "allowed_role"),
    [
        (Role.MEMBER, "mcp_servers_server_changelist", {"action": "disable_chosen"}, "operator"),
        (Role.AUDITOR, "mcp_servers_server_changelist", {"action": "disable_chosen"}, "operator"),
        (Role.OPERATOR, "mcp_servers_server_changelist", {"action": "approve_chosen"}, "reviewer"),
        (Role.AUDITOR, "agents_approval_changelist", {"action": "deny_chosen"}, "reviewer"),
        (Role.AUDITOR, "agents_budget_add", {"limit": "1"}, "operator"),
        (Role.OWNER, "tenancy_issuer_changelist", {}, "platform administrator"),
        (Role.OWNER, "agents_session_add", {}, "be changed here"),
    ],
)
def test_a_refused_action_names_the_roles_that_can_do_it(
    role: Role, name: str, fields: dict[str, str], allowed_role: str
) -> None:
    acme = factories.create_organization()
    server = admin_client.create_web_server(acme)
    factories.create_waiting_session(factories.create_agent(acme))
    page = admin_client.sign_in(acme, role).post(
        name, status=403, _selected_action=server.pk, **fields
    )
    assert "forbidden" in admin_client.get_text(page)
    assert allowed_role in admin_client.get_text(page)
    assert Server.objects.get(pk=server.pk).enabled


def test_lists_and_the_dashboard_use_a_fixed_number_of_queries(
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    acme = factories.create_organization()
    create_objects(acme, many=8)
    administrator = admin_client.sign_in(acme, None)
    # The inbox shows the first call beside the list, the audit log what happened over time.
    limits = {"index": 31, "agents_approval_changelist": 23, "ledger_auditrow_changelist": 26}
    for name in (*LISTS, "index"):
        with django_assert_max_num_queries(limits.get(name, 15), info=name):
            administrator.get(name)


def test_the_dashboard_says_that_there_are_more_when_counting_stopped() -> None:
    [item] = describe_elicitations(MAX_COUNTED + 1)
    assert item.title == "1,000+ elicitation requests"
    [item] = describe_elicitations(MAX_COUNTED)
    assert item.title == "1,000 elicitation requests"


def test_an_empty_dashboard_explains_what_to_do_first() -> None:
    page = admin_client.sign_in(factories.create_organization(), Role.OWNER).get("index")
    assert "First steps" in page
    assert reverse("admin:mcp_servers_server_presets") in page


def test_the_dashboard_lists_problems_and_pending_items() -> None:
    acme = factories.create_organization()
    server = admin_client.create_web_server(acme)
    admin_client.declare_tool(server)
    Server.objects.filter(pk=server.pk).update(
        status="error", status_code="server_unreachable", status_detail="Nobody answers."
    )
    page = admin_client.get_text(admin_client.sign_in(acme, Role.AUDITOR).get("index"))
    assert "Nobody answers." in page
    assert "1 definition to review" in page


def test_a_person_without_an_organization_is_refused() -> None:
    factories.create_organization()
    User.objects.create_user("stray", password="pw-for-tests", is_staff=True)
    client = Client()
    response = client.post(
        reverse("admin:login"), {"username": "stray", "password": "pw-for-tests"}, follow=True
    )
    assert "a member of any organization yet" in response.content.decode()
    assert "_auth_user_id" not in client.session


def test_a_member_who_isnt_staff_signs_in_and_sees_the_agents() -> None:
    acme = factories.create_organization()
    agent = factories.create_agent(acme)
    factories.create_agent(acme, "secret")
    member = admin_client.sign_in(acme, Role.MEMBER)
    agent.members.add(member.user)
    response = member.client.get(reverse("admin:index"), follow=True)
    page = admin_client.check_page(response)
    assert response.redirect_chain[-1][0] == reverse("admin:agents_agent_changelist")
    assert "Helper" in page
    assert "Secret" not in page
    assert "Audit" not in admin_client.get_text(page)


def test_a_member_sees_their_own_sessions_only() -> None:
    acme = factories.create_organization()
    agent = factories.create_agent(acme)
    start_session(factories.build_administrator(acme), agent, "the administrator asks")
    member = admin_client.sign_in(acme, Role.MEMBER)
    agent.members.add(member.user)
    start_session(admin_client.build_principal(member, acme), agent, "the member asks")
    page = admin_client.get_text(member.get("agents_session_changelist"))
    assert "the member asks" in page
    assert "the administrator asks" not in page
    hidden = Session.objects.get(title="the administrator asks")
    member.get("agents_session_change", hidden.pk, status=404)


def test_a_person_can_switch_the_organization() -> None:
    acme, other_organization = (
        factories.create_organization("acme"),
        factories.create_organization("other"),
    )
    owner = admin_client.sign_in(acme, Role.OWNER)
    Membership.objects.create(organization=other_organization, user=owner.user, role=Role.AUDITOR)
    admin_client.create_web_server(other_organization, "elsewhere")
    assert "elsewhere" not in owner.get("mcp_servers_server_changelist")
    owner.post("switch_organization", to="other")
    page = owner.get("mcp_servers_server_changelist")
    assert "elsewhere" in page
    assert reverse("admin:mcp_servers_server_add") not in page


def test_a_person_cant_switch_to_another_organization() -> None:
    acme, _other = factories.create_organization("acme"), factories.create_organization("other")
    owner = admin_client.sign_in(acme, Role.OWNER)
    owner.post("switch_organization", to="other", status=404)
    assert "Acme" in owner.get("index")


def test_a_link_alone_doesnt_switch_the_organization() -> None:
    acme, other_organization = (
        factories.create_organization("acme"),
        factories.create_organization("other"),
    )
    administrator = admin_client.sign_in(acme, None)
    administrator.get("switch_organization", to=other_organization.slug)
    assert "organization" not in administrator.client.session


def test_unused_models_arent_registered_in_the_admin() -> None:
    labels = {model._meta.app_label for model in site._registry}
    assert labels == {"agents", "ledger", "mcp_servers", "notices", "tenancy"} | {
        "django_celery_beat"
    }


def test_the_root_url_redirects_to_the_admin() -> None:
    assert Client().get("/")["Location"] == reverse("admin:index")


def test_a_member_is_added_by_username() -> None:
    acme = factories.create_organization()
    User.objects.create_user("berta")
    administrator = admin_client.sign_in(acme, None)
    administrator.post("tenancy_membership_add", username="berta", role="reviewer")
    assert Membership.objects.get(user__username="berta").role == Role.REVIEWER


def test_an_unknown_username_is_refused_at_its_field() -> None:
    administrator = admin_client.sign_in(factories.create_organization(), None)
    assert "Of an existing user." in administrator.get("tenancy_membership_add")
    page = administrator.post("tenancy_membership_add", username="nobody", role="reviewer")
    assert "Enter the user&#x27;s username, or invite them by email." in page
    assert 'value="nobody"' in page
    assert "The user &#x27;nobody&#x27; doesn&#x27;t exist" in page
    assert not Membership.objects.exists()


def test_an_owner_cant_find_accounts_of_other_organizations() -> None:
    User.objects.create_user("berta")
    owner = admin_client.sign_in(factories.create_organization(), Role.OWNER)
    fields = {"username": "berta", "role": "reviewer"}
    owner.post("tenancy_membership_add", status=403, **fields)
    assert not Membership.objects.filter(user__username="berta").exists()


def test_the_last_owner_cant_be_removed() -> None:
    acme = factories.create_organization()
    owner = admin_client.sign_in(acme, Role.OWNER)
    membership = Membership.objects.get(user=owner.user)
    page = owner.post("tenancy_membership_change", membership.pk, role="auditor")
    assert "last_owner" in page
    membership.refresh_from_db()
    assert membership.role == Role.OWNER


def test_only_a_platform_administrator_can_create_an_account() -> None:
    acme = factories.create_organization()
    fields = {"username": "new", "password1": "long-enough-1", "password2": "long-enough-1"}
    fields["usable_password"] = "true"
    admin_client.sign_in(acme, Role.OWNER).post("tenancy_user_add", status=403, **fields)
    admin_client.sign_in(acme, None).post("tenancy_user_add", **fields)
    assert User.objects.get(username="new").check_password("long-enough-1")
    assert AuditRow.objects.filter(action="user_created").count() == 1


def test_an_administrator_cant_lock_themselves_out() -> None:
    acme = factories.create_organization()
    administrator = admin_client.sign_in(acme, None)
    page = administrator.post(
        "tenancy_user_change", administrator.user.pk, username=administrator.user.username
    )
    assert "own_account" in page
    assert User.objects.get(pk=administrator.user.pk).is_active


def test_every_number_of_the_dashboard_links_to_its_rows() -> None:
    acme = factories.create_organization()
    create_objects(acme)
    owner = admin_client.sign_in(acme, Role.OWNER)
    links = set(re.findall(r'href="(/admin/[^"]*\?[^"]*)"', owner.get("index")))
    assert len(links) >= 6
    for link in links:
        assert owner.client.get(unescape(link)).status_code == 200, link


def test_the_lists_are_filtered_as_the_dashboard_links_say() -> None:
    acme = factories.create_organization()
    for name, status in (("good", "connected"), ("bad", "error")):
        server = admin_client.create_web_server(acme, name)
        Server.objects.filter(pk=server.pk).update(status=status, description=f"{name} one")
    owner = admin_client.sign_in(acme, Role.OWNER)
    links = set(re.findall(r'href="([^"]*\?status__exact=[^"]*)"', owner.get("index")))
    pages = {"&amp;" in link: admin_client.get_text(owner.open(unescape(link))) for link in links}
    for is_failing, name, other_name in ((True, "bad", "good"), (False, "good", "bad")):
        assert f"{name} one" in pages[is_failing]
        assert f"{other_name} one" not in pages[is_failing]
        assert "Clear filters" in pages[is_failing]
    Server.objects.update(status="disconnected")
    page = admin_client.get_text(owner.open(unescape(links.pop())))
    assert "Clear filters" in page
    assert "No servers yet" not in page


@pytest.mark.parametrize(
    ("list_name", "query"),
    [
        ("notices_notification_changelist", "state__exact=failed"),
        ("agents_accessrequest_changelist", "state__exact=waiting"),
        ("mcp_servers_server_changelist", "status__in=needs_reauth"),  # that no filter shows
    ],
)
def test_a_filtered_list_without_matches_offers_to_clear_its_filter(
    list_name: str, query: str
) -> None:
    owner = admin_client.sign_in(factories.create_organization(), Role.OWNER)
    assert "Clear filters" in owner.open(f"{admin_client.build_url(list_name)}?{query}")


def test_no_link_filters_a_list_with_a_parameter_that_its_filters_dont_show() -> None:
    files = [*Path("templates").rglob("*.html"), *Path("agents/admin").rglob("*.py")]
    assert [path for path in files if re.search(r"\?\w+__in=", path.read_text())] == []


def test_the_dashboard_counts_disabled_servers_apart() -> None:
    organization = factories.create_organization()
    for name in ("first", "second", "off"):
        admin_client.create_web_server(organization, name)
    Server.objects.update(status="connected")
    owner = admin_client.sign_in(organization, Role.OWNER)
    page = admin_client.get_text(owner.get("index"))
    assert "3 of 3 connected" in page
    assert "disabled" not in page.partition("3 of 3 connected")[2][:20]
    Server.objects.filter(name="off").update(enabled=False, status="disabled")
    assert "2 of 2 connected, 1 disabled" in admin_client.get_text(owner.get("index"))
    Server.objects.update(enabled=False, status="disabled")
    page = admin_client.get_text(owner.get("index"))
    assert "All servers are disabled." in page
    assert "No servers yet" not in page


def test_the_dashboard_shows_outages_with_remedies() -> None:
    acme = factories.create_organization()
    unreachable, unauthorized = (
        admin_client.create_web_server(acme, name) for name in ("away", "closed")
    )
    record_failure(unreachable.pk, "health", Problem("Nobody listens.", code="server_unreachable"))
    record_failure(unauthorized.pk, "health", Problem("It said 401.", code="needs_reauth"))
    notification = factories.create_notification(acme)
    Notification.objects.filter(pk=notification.pk).update(state="failed")
    page = admin_client.sign_in(acme, Role.OWNER).get("index")
    assert admin_client.build_url("mcp_servers_server_health", unreachable.pk) in page
    assert admin_client.build_url("mcp_servers_server_configuration", unauthorized.pk) in page
    assert "away is failing" in page
    assert "closed needs new credentials" in page
    assert "1 undelivered notification" in page
    assert "2 failing" in page
    Server.objects.filter(pk=unreachable.pk).update(enabled=False)
    assert "away" not in admin_client.sign_in(acme, Role.AUDITOR).get("index")


def test_the_dashboard_lists_quarantined_sessions_and_ended_processes(
    settings: Settings, tmp_path: Path
) -> None:
    settings.BONOBOT_VAR = tmp_path
    acme = factories.create_organization()
    quarantine_session(factories.create_answered_session(factories.create_agent(acme)))
    statuses = [
        ProcessStatus("web", "running"),
        ProcessStatus("worker", "running", 2, "killed by SIGKILL", time.time()),
        ProcessStatus("beat", "stopped", 5, "exit status 1"),
    ]
    write_statuses(tmp_path, statuses)
    page = admin_client.get_text(admin_client.sign_in(acme, None).get("index"))
    assert "Quarantined session Hello" in page
    assert "Process worker ended and was restarted" in page
    assert "Last end: killed by SIGKILL. Restarts: 2." in page
    assert "Process beat ended too often" in page
    assert "Process web" not in page
    page = admin_client.get_text(admin_client.sign_in(acme, Role.OWNER).get("index"))
    assert "Quarantined session Hello" in page
    assert "Process" not in page, "the installation isn't theirs"


def test_a_page_that_cant_be_shown_has_what_happened_as_its_title() -> None:
    acme = factories.create_organization()
    denied = admin_client.sign_in(acme, Role.MEMBER).get("settings", status=403)
    (heading,) = re.findall(r"<h1[^>]*>(.*?)</h1>", denied)
    assert heading == "Not allowed"
    text = admin_client.get_text(denied)
    assert "Your role is member. An owner can give you a role that has this permission" in text
    assert f"Page {admin_client.build_url('settings')}" in text
    missing_id = "01a2b3c4-0000-4000-8000-000000000000"
    missing = admin_client.sign_in(acme, Role.OWNER).get(
        "agents_agent_change", missing_id, status=404
    )
    (heading,) = re.findall(r"<h1[^>]*>(.*?)</h1>", missing)
    assert heading == "Not found"
    text = admin_client.get_text(missing)
    assert "The agent doesn't exist or was deleted." in text
    assert missing_id not in text


def test_the_dashboard_leads_reviewers_to_the_pending_definitions_of_all_servers() -> None:
    acme = factories.create_organization()
    for name in ("docs", "mail"):
        admin_client.declare_tool(admin_client.create_web_server(acme, name))
    review_url = admin_client.build_url("mcp_servers_server_confirm_approve")
    list_url = admin_client.build_url("mcp_servers_server_changelist")
    reviewer, auditor = (admin_client.sign_in(acme, role) for role in (Role.REVIEWER, Role.AUDITOR))
    assert f'href="{review_url}?waiting=yes&amp;all=1"' in reviewer.get("index")
    page = auditor.get("index")
    assert review_url not in page
    assert f'href="{list_url}?waiting=yes"' in page
