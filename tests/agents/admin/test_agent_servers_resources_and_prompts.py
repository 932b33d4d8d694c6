"""Ticking resources and prompts in an agent's agent_server: one by one, all, or by patterns."""

import pytest

from agents.models import AgentServer
from agents.services import attach_server
from bonobot.accounts.roles import Role
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.models import Definition
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def helper(acme):
    return factories.create_agent(acme)


@pytest.fixture
def server(acme):
    made = admin_client.web_server(acme)
    admin_client.offer(made, "docs://a?b", kind=Definition.Kind.RESOURCE, description="<b>bold</b>")
    admin_client.offer(made, "docs://{page}", kind=Definition.Kind.RESOURCE_TEMPLATE)
    admin_client.offer(made, "review", kind=Definition.Kind.PROMPT)
    approve_definitions(factories.build_administrator(acme), made)
    return made


@pytest.fixture
def tick(acme, helper, server):
    seat = admin_client.sit(acme, Role.OPERATOR)

    def send(status=200, **said):
        fields = {f"{name.replace('_', '-')}-{server.pk}": value for name, value in said.items()}
        fields |= {"server": str(server.pk), f"ticks-{server.pk}": "1"}
        fields.setdefault(f"how-{server.pk}", "chosen")
        return seat.send(admin_client.url("agents_agent_pick", helper.pk), fields, status=status)

    return send


def kept():
    agent_server = AgentServer.objects.get()
    return agent_server.allowed_resources, agent_server.allowed_prompts


def test_a_selected_item_is_stored_as_an_exact_pattern(tick):
    tick(resource=["docs://a?b", "docs://{page}"], prompt="review")
    assert kept() == (["docs://a[?]b", "docs://{page}"], ["review"])


def test_all_and_patterns_are_stored_and_shown(acme, helper, server, tick):
    tick(resource_all="1", resource_more="docs://x/*\n\n", prompt_more="rev*")
    assert kept() == (["*", "docs://x/*"], ["rev*"])
    page = admin_client.sit(acme, Role.OWNER).get(
        "agents_agent_pick", helper.pk, server=str(server.pk)
    )
    assert "docs://x/*</textarea>" in page
    assert "&lt;b&gt;bold" in page
    assert f'name="resource-all-{server.pk}" value="1" checked' in page


def test_deselecting_removes_an_item_and_an_empty_selection_is_refused(acme, helper, server, tick):
    attach_server(factories.build_administrator(acme), helper, server, allowed_resources=["*"])
    tick(prompt="review")
    assert kept() == ([], ["review"])
    assert "nothing_chosen" in tick()


def test_a_form_without_a_selection_keeps_it(acme, helper, server):
    attach_server(factories.build_administrator(acme), helper, server, allowed_resources=["*"])
    fields = {"server": str(server.pk), f"how-{server.pk}": "all"}
    admin_client.sit(acme, Role.OPERATOR).send(
        admin_client.url("agents_agent_pick", helper.pk), fields
    )
    assert kept() == (["*"], [])


def test_the_server_page_shows_what_can_be_used_and_why_not(acme, helper, server):
    attach_server(factories.build_administrator(acme), helper, server, allowed_prompts=["review"])
    page = admin_client.words(
        admin_client.sit(acme, Role.AUDITOR).get("agents_agent_servers", helper.pk)
    )
    assert "1 of 3 resources and prompts available" in page
    assert "not_selected" in page
