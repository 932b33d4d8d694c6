"""The command palette: pages, actions, and objects that the role allows."""

import re

import pytest

from agents.models import Session
from agents.sessions.services import start_session
from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.roles import Role
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


def test_an_empty_search_shows_the_allowed_pages_and_actions(acme: Organization) -> None:
    page = admin_client.get_text(admin_client.sign_in(acme, Role.OWNER).get("palette"))
    assert "Approvals" in page
    assert "Create agent" in page
    auditors_page = admin_client.get_text(admin_client.sign_in(acme, Role.AUDITOR).get("palette"))
    assert "Approvals" in auditors_page
    assert "Create agent" not in auditors_page
    assert "Users" not in page


def test_words_find_servers_agents_and_sessions_of_the_organization(
    acme: Organization,
) -> None:
    other_organization = factories.create_organization("other")
    for organization in (acme, other_organization):
        admin_client.create_web_server(organization, f"weather-{organization.slug}")
    agent = factories.create_agent(acme, "weatherman")
    start_session(factories.build_administrator(acme), agent, "How is the weather?")
    page = admin_client.sign_in(acme, Role.OWNER).get("palette", q="weather")
    assert "weather-acme" in page
    assert admin_client.build_url("agents_agent_change", agent.pk) in page
    assert admin_client.build_url("agents_session_change", Session.objects.get().pk) in page
    assert "weather-other" not in page


def test_a_member_finds_only_their_agents(acme: Organization) -> None:
    admin_client.create_web_server(acme, "weather")
    agent = factories.create_agent(acme, "weatherman")
    member = admin_client.sign_in(acme, Role.MEMBER)
    page = member.get("palette", q="weather")
    assert "mcp-servers" not in page
    assert str(agent.pk) not in page
    agent.members.add(member.user)
    assert admin_client.build_url("agents_agent_change", agent.pk) in member.get("palette")
    assert admin_client.build_url("agents_agent_change", agent.pk) in member.get(
        "palette", q="weather"
    )


def test_a_search_without_results_shows_a_message(acme: Organization) -> None:
    page = admin_client.sign_in(acme, Role.OWNER).get("palette", q="<script>%_")
    assert "No actions, pages, or objects match." in page


def list_urls(page: str) -> list[str]:
    return re.findall(r'data-goes="([^"]+)"', page)


@pytest.mark.parametrize(
    ("query", "url_name"),
    [
        ("create tok", "tenancy_token_add"),
        ("mem inv", "tenancy_invitation_add"),
        ("server", "mcp_servers_server_presets"),
        ("agent", "agents_agent_add"),
        ("denied calls", "ledger_auditrow_changelist"),
    ],
)
def test_actions_are_found_first_by_the_starts_of_their_words(
    acme: Organization, query: str, url_name: str
) -> None:
    page = admin_client.sign_in(acme, Role.OWNER).get("palette", q=query)
    assert list_urls(page)[0].partition("?")[0] == admin_client.build_url(url_name)


def test_objects_come_after_actions_and_before_documentation(acme: Organization) -> None:
    server = admin_client.create_web_server(acme, "token-server")
    urls = list_urls(admin_client.sign_in(acme, Role.OWNER).get("palette", q="token"))
    action, server_page = (
        admin_client.build_url("tenancy_token_add"),
        admin_client.build_url("mcp_servers_server_change", server.pk),
    )
    first_documentation = next(at for at, url in enumerate(urls) if url.startswith("/docs/"))
    assert urls.index(action) < urls.index(server_page) < first_documentation


def test_the_theme_can_be_switched_with_the_buttons_of_the_account_menu(
    acme: Organization,
) -> None:
    member = admin_client.sign_in(acme, Role.MEMBER)
    assert list_urls(member.get("palette", q="switch theme"))[:3] == [
        "#theme-light",
        "#theme-dark",
        "#theme-auto",
    ]
    assert 'id="theme-dark"' in member.get("agents_agent_changelist")


def test_typed_text_is_searched_in_the_documentation_too(acme: Organization) -> None:
    member = admin_client.sign_in(acme, Role.MEMBER)
    page = member.get("palette", q="access requests")
    assert 'data-goes="/docs/approvals#access-requests"' in page
    assert 'data-goes="/docs/?q=access+requests"' in page
    assert "Search documentation: access requests" in admin_client.get_text(page)
    assert 'data-goes="/docs/"' in member.get("palette")


def test_a_search_uses_few_queries(acme: Organization, django_assert_max_num_queries) -> None:
    owner = admin_client.sign_in(acme, Role.OWNER)
    with django_assert_max_num_queries(15):
        owner.get("palette", q="a")


def test_actions_are_those_that_the_role_can_perform(acme: Organization) -> None:
    owner = admin_client.sign_in(acme, Role.OWNER).get("palette")
    assert admin_client.build_url("tenancy_invitation_add") in owner
    assert admin_client.build_url("tenancy_membership_add") not in owner
    member = admin_client.sign_in(acme, Role.MEMBER).get("palette")
    assert admin_client.build_url("agents_accessrequest_add") in member
    assert admin_client.build_url("agents_agent_add") not in member


def test_tools_are_found_by_their_name_with_a_link_to_their_review(acme: Organization) -> None:
    server = admin_client.create_web_server(acme, "clock")
    admin_client.declare_tool(server, "get_current_time")
    admin_client.declare_tool(server, "other_tool")
    other_organization = factories.create_organization("other")
    foreign = admin_client.create_web_server(other_organization, "foreign")
    admin_client.declare_tool(foreign, "get_current_weather")
    owner = admin_client.sign_in(acme, Role.OWNER)
    page = owner.get("palette", q="get_current")
    tools_url = admin_client.build_url("mcp_servers_server_tools", server.pk)
    assert f'data-goes="{tools_url}?q=get_current_time"' in page
    assert "tool of clock" in admin_client.get_text(page)
    assert "get_current_weather" not in page
    assert "other_tool" not in owner.get("palette", q="clock")
    assert tools_url in owner.get("palette", q="clock other")
    assert tools_url not in admin_client.sign_in(acme, Role.MEMBER).get("palette", q="get_current")


def test_members_are_found_by_username_name_and_email_by_those_who_may_view_members(
    acme: Organization,
) -> None:
    user = User.objects.create_user(
        "person0421", "mia@example.com", first_name="Mia", last_name="Miller"
    )
    member = Membership.objects.create(organization=acme, user=user, role=Role.REVIEWER)
    url = admin_client.build_url("tenancy_membership_change", member.pk)
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    for query in ("person0421", "mia miller", "mia@example"):
        page = auditor.get("palette", q=query)
        assert f'data-goes="{url}"' in page
        assert "person0421 member" in admin_client.get_text(page)
    other_organization = factories.create_organization("other")
    for browser in (
        admin_client.sign_in(acme, Role.MEMBER),
        admin_client.sign_in(other_organization, Role.OWNER),
    ):
        assert url not in browser.get("palette", q="person0421")


def test_results_of_the_documentation_are_results(acme: Organization) -> None:
    page = admin_client.sign_in(acme, Role.OWNER).get("palette", q="access requests")
    assert "No actions" not in page


@pytest.mark.parametrize("query", ["approve", "approvals", "deny"])
def test_the_page_of_approvals_is_the_first_result(acme: Organization, query: str) -> None:
    page = admin_client.sign_in(acme, Role.OWNER).get("palette", q=query)
    first_url = page.partition('data-goes="')[2].partition('"')[0]
    assert first_url == admin_client.build_url("agents_approval_changelist")
