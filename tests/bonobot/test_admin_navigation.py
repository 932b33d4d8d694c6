"""Navigation in the admin: names of pages, empty lists, long lists, and delete pages."""

import re

import pytest
from django.contrib.admin import site
from django.urls import reverse

from agents.models import ModelEndpoint
from bonobot.accounts.admin_base import scoped_admin
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core.problems import Problem
from mcp_servers.health.server_status import record_failure
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import admin_client, factories
from tests.screens import create_objects

pytestmark = pytest.mark.django_db


def test_a_server_that_needs_a_sign_in_is_listed_once() -> None:
    acme = factories.create_organization()
    server = create_server(
        factories.build_administrator(acme),
        ServerSpec(
            name="tracker",
            transport_type="http",
            endpoint_config={"url": "http://127.0.0.1:9/mcp"},
            allow_private=True,
            auth_config={"type": "oauth2", "grant": "authorization_code"},
        ),
    )
    record_failure(server.pk, "health", Problem("Nobody has signed in.", code="needs_reauth"))
    page = admin_client.sign_in(acme, Role.OWNER).get("index")
    assert admin_client.get_text(page).count("tracker") == 2  # its name, and on the button
    assert "Sign in to tracker" in page
    assert "ongoing" not in page


def test_breadcrumbs_use_the_names_of_the_navigation() -> None:
    acme = factories.create_organization()
    token = create_token(factories.build_administrator(acme), name="ci", role=Role.MEMBER)[0]
    admin = admin_client.sign_in(acme, Role.OWNER)

    def list_breadcrumbs(name: str, *args: object) -> list[str]:
        crumbs = admin.get(name, *args).split('class="bb-crumbs"', 1)[1].split("</nav>", 1)[0]
        return re.findall(r">([^<>]+)</(?:a|h1)>", crumbs)

    assert list_breadcrumbs("ledger_auditrow_changelist") == ["Audit log"]
    assert list_breadcrumbs("organization_kill_switch") == ["Kill switch"]
    assert list_breadcrumbs("agents_budget_add") == ["Budgets", "Create budget"]
    assert list_breadcrumbs("tenancy_token_change", token.pk) == [
        *("Settings", "Tokens", f"ci ({token.key}…)")
    ]
    server = admin_client.create_web_server(acme, "lower-case")
    assert list_breadcrumbs("mcp_servers_server_health", server.pk) == [
        *("Servers", "lower-case", "Activity", "History")
    ]


def test_tab_breadcrumb_and_title_have_the_same_name() -> None:
    acme = factories.create_organization()
    agent, server = factories.create_agent(acme), admin_client.create_web_server(acme)
    session = factories.create_answered_session(agent)
    admin = admin_client.sign_in(acme, Role.OWNER)
    for name, key in (
        *((f"agents_agent_{page}", agent.pk) for page in ("sessions", "configuration", "clients")),
        *((f"mcp_servers_server_{page}", server.pk) for page in ("calls", "configuration")),
        ("agents_session_change", session.pk),
    ):
        page = admin.get(name, key)
        tabs = page.split("bb-tabs", 1)[1].split("</nav>", 1)[0]
        (tab,) = re.findall(r"aria-current=\"page\"[^>]*>\s*([^<>]+?)\s*<", tabs)
        title = page.split("<title>", 1)[1].split("</title>", 1)[0]
        assert title.split(" · ")[0].strip() == tab, name
        crumbs = page.split('class="bb-crumbs"', 1)[1].split("</nav>", 1)[0]
        assert re.findall(r"<h1[^>]*>([^<>]+)</h1>", crumbs) == [tab], name


def test_pages_are_grouped_in_at_most_six_tabs() -> None:
    acme = factories.create_organization()
    agent, server = factories.create_agent(acme), admin_client.create_web_server(acme)
    admin = admin_client.sign_in(acme, Role.OWNER)

    def list_tabs(css_class: str, page: str) -> list[str]:
        return re.findall(r">([^<>]+)</a>", page.split(css_class, 1)[1].split("</nav>", 1)[0])

    page = admin.get("agents_agent_recordings", agent.pk)
    assert list_tabs("bb-tabs", page) == [
        *("Chat", "Tools", "Configure", "Activity", "Metrics", "Connect")
    ]
    assert list_tabs('<nav class="bb-segments"', page) == ["Sessions", "Recordings"]
    assert page.count('aria-current="page"') == 3  # in the sidebar, the tabs, and their pages
    page = admin.get("mcp_servers_server_change", server.pk)
    assert list_tabs("bb-tabs", page) == [
        *("Overview", "Tools", "Resources", "Try it", "Activity", "Configure")
    ]
    assert '<nav class="bb-segments"' not in page


def test_an_empty_list_explains_itself_and_an_empty_search_says_no_results() -> None:
    admin = admin_client.sign_in(factories.create_organization(), Role.OWNER)
    for name, words in (
        ("agents_budget", "A budget limits"),
        ("tenancy_token", "It is shown once"),
    ):
        assert words in admin.get(f"{name}_changelist")
        page = admin.get(f"{name}_changelist", q="nothing like it")
        assert "No results" in page
        assert words not in page


def test_a_long_list_is_counted_up_to_a_limit_and_shows_that_there_is_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acme = factories.create_organization()
    admin = admin_client.sign_in(acme, Role.OWNER)
    create_token(factories.build_administrator(acme), name="the odd one", role=Role.MEMBER)
    for number in range(59):
        create_token(factories.build_administrator(acme), name=f"ci {number}", role=Role.MEMBER)
    assert "60 tokens" in admin_client.get_text(admin.get("tenancy_token_changelist"))
    monkeypatch.setattr(scoped_admin, "MAX_LISTED", 55)
    page = admin_client.get_text(admin.get("tenancy_token_changelist"))
    assert "55+ tokens" in page
    assert "search or filter" in page
    assert ">ci 6<" in admin.get("tenancy_token_changelist", p=2)
    results = admin_client.get_text(admin.get("tenancy_token_changelist", q="odd one"))
    assert "1 token" in results
    assert "+ token" not in results


DELETABLE = (
    *("agents_modelendpoint", "agents_budget", "agents_skill", "agents_workflow"),
    *("mcp_servers_preset", "mcp_servers_launcher", "notices_notificationchannel"),
    *("tenancy_issuer", "tenancy_provider", "tenancy_membership"),
)


@pytest.mark.parametrize("name", DELETABLE)
def test_a_delete_page_explains_the_consequences(name: str) -> None:
    acme = factories.create_organization()
    ids = create_objects(acme)
    page = admin_client.sign_in(acme, None).get(f"{name}_delete", ids[name])
    explanation = re.search(r"(?:can't be undone|can undo this)[^<]*</p>\s*<p>([^<]+)</p>", page)
    assert explanation or "Choose another model for these first" in page
    assert admin_client.find_links(page, admin_client.build_url(f"{name}_change", ids[name]))


def test_a_model_in_use_lists_its_agents_and_cant_be_deleted() -> None:
    acme = factories.create_organization()
    agent = factories.create_agent(acme, "thinker")
    model = agent.model_endpoint
    spare = ModelEndpoint.objects.create(
        organization=acme, name="spare", slug="spare", kind="offline", fallback=model
    )
    admin = admin_client.sign_in(acme, Role.OWNER)
    page = admin.get("agents_modelendpoint_delete", model.pk)
    assert admin_client.find_links(page, admin_client.build_url("agents_agent_change", agent.pk))
    assert admin_client.find_links(
        page, admin_client.build_url("agents_modelendpoint_change", spare.pk)
    )
    assert 'name="post"' not in page
    admin.post("agents_modelendpoint_delete", model.pk, post="yes")
    assert ModelEndpoint.objects.filter(pk=model.pk).exists()
    admin.post("agents_modelendpoint_delete", spare.pk, post="yes")
    assert not ModelEndpoint.objects.filter(pk=spare.pk).exists()


def test_the_pages_of_a_model_have_its_plural_name_as_their_path() -> None:
    paths = {
        name: reverse(f"admin:{name}_changelist")
        for name in ("mcp_servers_server", "agents_agent", "tenancy_membership", "ledger_auditrow")
    }
    assert paths == {
        "mcp_servers_server": "/admin/mcp-servers/",
        "agents_agent": "/admin/agents/",
        "tenancy_membership": "/admin/members/",
        "ledger_auditrow": "/admin/audit-log/",
    }


def test_the_pages_of_each_model_redirect_from_the_path_that_django_gives_them() -> None:
    admin = admin_client.sign_in(factories.create_organization(), Role.OWNER)
    for model in site._registry:
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        new = reverse(f"admin:{name}_changelist")
        old = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        assert admin.client.get(f"{old}1/change/?q=a").headers["Location"] == f"{new}1/change/?q=a"


def test_an_old_address_redirects_when_its_model_was_renamed() -> None:
    admin = admin_client.sign_in(factories.create_organization(), Role.OWNER)
    for suffix in ("7/change/?q=a", ""):
        response = admin.client.get(f"/admin/agents/question/{suffix}")
        assert response.status_code == 302
        assert response["Location"] == f"/admin/elicitation-requests/{suffix}"
