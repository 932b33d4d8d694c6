"""Selecting an attached server's resources and prompts: single, all, or by pattern."""

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
    server = admin_client.create_web_server(acme)
    admin_client.declare_tool(
        server, "docs://a?b", kind=Definition.Kind.RESOURCE, description="<b>bold</b>"
    )
    admin_client.declare_tool(server, "docs://{page}", kind=Definition.Kind.RESOURCE_TEMPLATE)
    admin_client.declare_tool(server, "review", kind=Definition.Kind.PROMPT)
    approve_definitions(factories.build_administrator(acme), server)
    return server


@pytest.fixture
def submit_selection(acme, helper, server):
    operator = admin_client.sign_in(acme, Role.OPERATOR)

    def submit(status=200, **selection):
        fields = {
            f"{name.replace('_', '-')}-{server.pk}": value for name, value in selection.items()
        }
        fields |= {"server": str(server.pk), f"selection-{server.pk}": "1"}
        fields.setdefault(f"mode-{server.pk}", "selected")
        return operator.send(
            admin_client.build_url("agents_agent_attach_servers", helper.pk), fields, status=status
        )

    return submit


def get_selection():
    agent_server = AgentServer.objects.get()
    return agent_server.allowed_resources, agent_server.allowed_prompts


def test_a_selected_item_is_stored_as_an_exact_pattern(submit_selection):
    submit_selection(resource=["docs://a?b", "docs://{page}"], prompt="review")
    assert get_selection() == (["docs://a[?]b", "docs://{page}"], ["review"])


def test_all_and_patterns_are_stored_and_shown(acme, helper, server, submit_selection):
    submit_selection(resource_all="1", resource_more="docs://x/*\n\n", prompt_more="rev*")
    assert get_selection() == (["*", "docs://x/*"], ["rev*"])
    page = admin_client.sign_in(acme, Role.OWNER).get(
        "agents_agent_attach_servers", helper.pk, server=str(server.pk)
    )
    assert "docs://x/*</textarea>" in page
    assert "&lt;b&gt;bold" in page
    assert f'name="resource-all-{server.pk}" value="1" checked' in page


def test_deselecting_removes_an_item_and_an_empty_selection_is_refused(
    acme, helper, server, submit_selection
):
    attach_server(factories.build_administrator(acme), helper, server, allowed_resources=["*"])
    submit_selection(prompt="review")
    assert get_selection() == ([], ["review"])
    assert "nothing_selected" in submit_selection()


def test_a_form_without_a_selection_keeps_it(acme, helper, server):
    attach_server(factories.build_administrator(acme), helper, server, allowed_resources=["*"])
    fields = {"server": str(server.pk), f"mode-{server.pk}": "all"}
    admin_client.sign_in(acme, Role.OPERATOR).send(
        admin_client.build_url("agents_agent_attach_servers", helper.pk), fields
    )
    assert get_selection() == (["*"], [])


def test_the_matrix_shows_how_many_can_be_used(acme, helper, server):
    attach_server(factories.build_administrator(acme), helper, server, allowed_prompts=["review"])
    page = admin_client.get_text(
        admin_client.sign_in(acme, Role.AUDITOR).get("agents_agent_servers", helper.pk)
    )
    assert "1 of 3 resources and prompts available" in page
