"""Attaching servers to an agent: select servers, then at least one tool of each."""

import pytest
from django.utils import timezone

from agents.models import Agent, AgentServer
from agents.services import attach_server
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.models import Server
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
ADD_SCHEMA = {
    "type": "object",
    "required": ["a"],
    "properties": {"a": {"type": "number", "description": "The first summand"}},
}


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.fixture
def server(acme: Organization) -> Server:
    server = admin_client.create_web_server(acme)
    admin_client.declare_tool(
        server, "add", description="Adds <b>two</b> numbers", inputSchema=ADD_SCHEMA
    )
    admin_client.declare_tool(server, "echo")
    approve_definitions(factories.build_administrator(acme), server)
    admin_client.declare_tool(server, "a*b")
    return server


@pytest.fixture
def operator(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OPERATOR)


def attach_selected(
    operator: admin_client.AdminClient,
    helper: Agent,
    *servers: Server,
    status: int = 200,
    **selection: object,
) -> str:
    """Submit the last page's form with the same selection for each server."""
    fields: dict[str, object] = {"server": [str(server.pk) for server in servers]}
    for server in servers:
        fields |= {f"{name}-{server.pk}": value for name, value in selection.items()}
    return operator.send(
        admin_client.build_url("agents_agent_attach_servers", helper.pk), fields, status=status
    )


def test_pool_servers_that_arent_attached_are_offered(
    acme: Organization, helper: Agent, server: Server, operator: admin_client.AdminClient
) -> None:
    attached = admin_client.create_web_server(acme, "had")
    attach_server(factories.build_administrator(acme), helper, attached)
    page = admin_client.get_text(operator.get("agents_agent_attach_servers", helper.pk))
    assert "web" in page
    assert "2 of 3 tools approved" in page
    assert "had" not in page


def test_the_list_uses_the_same_queries_for_any_number_of_servers(
    acme: Organization,
    helper: Agent,
    server: Server,
    operator: admin_client.AdminClient,
    django_assert_max_num_queries,
) -> None:
    operator.get("agents_agent_attach_servers", helper.pk)
    for number in range(8):
        admin_client.declare_tool(admin_client.create_web_server(acme, f"web{number}"))
    with django_assert_max_num_queries(14):  # including the badges of the navigation
        page = operator.get("agents_agent_attach_servers", helper.pk)
    assert "web7" in page


@pytest.mark.parametrize(
    ("in_pool", "words"),
    [(False, "No shared servers yet"), (True, "All shared servers are attached")],
)
def test_without_servers_the_page_explains_what_to_do(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient, in_pool: bool, words: str
) -> None:
    if in_pool:
        attach_server(
            factories.build_administrator(acme), helper, admin_client.create_web_server(acme)
        )
    assert words in admin_client.get_text(operator.get("agents_agent_attach_servers", helper.pk))


def test_a_servers_tools_are_shown_with_state_and_arguments(
    helper: Agent, server: Server, operator: admin_client.AdminClient
) -> None:
    page = operator.get("agents_agent_attach_servers", helper.pk, server=str(server.pk))
    assert "Adds &lt;b&gt;two&lt;/b&gt; numbers" in page
    assert ">approved<" in page
    assert ">pending review<" in page
    add = server.definitions.get(name="add")
    arguments = operator.get("mcp_servers_server_arguments", server.pk, of=str(add.pk))
    assert "The first summand" in arguments


def test_arguments_of_another_servers_definition_arent_found(
    server: Server, operator: admin_client.AdminClient
) -> None:
    foreign = admin_client.declare_tool(
        admin_client.create_web_server(factories.create_organization("other"))
    )
    for definition_id in (str(foreign.pk), "nonsense"):
        operator.get("mcp_servers_server_arguments", server.pk, of=definition_id, status=404)


def test_only_selected_tools_are_attached(
    helper: Agent, server: Server, operator: admin_client.AdminClient
) -> None:
    page = attach_selected(operator, helper, server, mode="selected", tool=["add", "a*b"])
    assert helper.agent_servers.get().allowed_tools == ["a[*]b", "add"]
    assert "1 allow 2 deny" in admin_client.get_text(page)
    assert "Not selected" in page


def test_at_least_one_tool_must_be_selected(
    helper: Agent, server: Server, operator: admin_client.AdminClient
) -> None:
    for mode in ("selected", ""):
        assert "nothing_selected" in attach_selected(operator, helper, server, mode=mode)
    assert not helper.agent_servers.exists()


def test_all_tools_is_a_separate_choice(
    helper: Agent, server: Server, operator: admin_client.AdminClient
) -> None:
    attach_selected(operator, helper, server, mode="all", tool=["add"])
    assert helper.agent_servers.get().allowed_tools == []


def test_unlisted_tools_cant_be_attached(
    helper: Agent, server: Server, operator: admin_client.AdminClient
) -> None:
    assert "unknown_tool" in attach_selected(
        operator, helper, server, mode="selected", tool=["add", "nothing"]
    )
    assert not helper.agent_servers.exists()


def test_several_servers_are_attached_together(
    acme: Organization, helper: Agent, server: Server, operator: admin_client.AdminClient
) -> None:
    attach_selected(
        operator, helper, server, admin_client.create_web_server(acme, "bare"), mode="all"
    )
    assert AgentServer.objects.count() == 2


def test_an_invalid_selection_changes_nothing(
    acme: Organization, helper: Agent, server: Server, operator: admin_client.AdminClient
) -> None:
    bare = admin_client.create_web_server(acme, "bare")
    fields = {
        "server": [str(server.pk), str(bare.pk)],
        f"mode-{server.pk}": "all",
        f"mode-{bare.pk}": "selected",
    }
    page = operator.send(admin_client.build_url("agents_agent_attach_servers", helper.pk), fields)
    assert "nothing_selected" in page
    assert not AgentServer.objects.exists()


def test_the_current_selection_is_shown_and_its_patterns_are_kept(
    acme: Organization, helper: Agent, server: Server, operator: admin_client.AdminClient
) -> None:
    attach_server(
        *(factories.build_administrator(acme), helper, server),
        enabled=False,
        allowed_tools=["a*"],
        denied_tools=["a?b"],
    )
    page = operator.get("agents_agent_attach_servers", helper.pk, server=str(server.pk))
    assert page.count(" checked>") == 3  # "Selected tools" and two tools
    assert ">a?b</textarea>" in operator.get(
        "agents_agent_attach_servers", helper.pk, server=str(server.pk)
    )
    attach_selected(
        operator, helper, server, mode="selected", tool=["add", "a*b"], denied="a?b\n\n"
    )
    agent_server = helper.agent_servers.get()
    assert (agent_server.allowed_tools, agent_server.denied_tools) == (["a*"], ["a?b"])
    assert not agent_server.enabled


@pytest.mark.django_db(transaction=True)
def test_an_unchecked_server_is_discovered_and_its_error_shown(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient
) -> None:
    unreachable = admin_client.create_web_server(acme, "silent")
    assert "data-connect" in operator.get(
        "agents_agent_attach_servers", helper.pk, server=str(unreachable.pk)
    )
    url = (
        admin_client.build_url("agents_agent_test_server", helper.pk) + f"?server={unreachable.pk}"
    )
    page = operator.send(url, {})
    assert "server_unreachable" in page
    Server.objects.filter(pk=unreachable.pk).update(discovered_at=timezone.now())
    picker = operator.get("agents_agent_attach_servers", helper.pk, server=str(unreachable.pk))
    assert 'reference/refusals#server_unreachable"' in picker
    assert f'name="mode-{unreachable.pk}"' in page


def test_a_server_of_another_organization_isnt_found(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient
) -> None:
    foreign = admin_client.create_web_server(factories.create_organization("other"))
    other_agent = factories.create_agent(acme, "other")
    private = admin_client.create_web_server(acme, "private")
    Server.objects.filter(pk=private.pk).update(scope_id=other_agent.pk)
    for server_id in (str(foreign.pk), str(private.pk), "nonsense"):
        operator.get("agents_agent_attach_servers", helper.pk, server=server_id, status=404)
        operator.post("agents_agent_attach_servers", helper.pk, server=server_id, status=404)
    operator.post("agents_agent_attach_servers", helper.pk, status=404)
    assert not AgentServer.objects.exists()


def test_a_reviewer_cant_attach_servers(acme: Organization, helper: Agent, server: Server) -> None:
    reviewer = admin_client.sign_in(acme, Role.REVIEWER)
    reviewer.get("agents_agent_attach_servers", helper.pk, server=str(server.pk), status=403)
    attach_selected(reviewer, helper, server, mode="all", status=403)
    assert not AgentServer.objects.exists()


def test_a_disabled_server_is_named_but_cant_be_attached(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient
) -> None:
    fetch = admin_client.create_web_server(acme, "fetch")
    Server.objects.filter(pk=fetch.pk).update(enabled=False)
    for name in ("agents_agent_servers", "agents_agent_attach_servers"):
        page = operator.get(name, helper.pk)
        text = admin_client.get_text(page)
        assert "Disabled servers can't be attached. Enable them first: fetch" in text
        assert f'value="{fetch.pk}"' not in page
    for refusal in (
        operator.post("agents_agent_attach_selected", helper.pk, server=str(fetch.pk)),
        operator.get("agents_agent_attach_servers", helper.pk, status=409, server=str(fetch.pk)),
        attach_selected(operator, helper, fetch, mode="all"),
    ):
        assert "server_disabled" in refusal
        assert "Disabled servers can&#x27;t be attached. Enable it first." in refusal
    assert not helper.agent_servers.exists()
    attach_server(factories.build_administrator(acme), helper, fetch, allows_disabled=True)
    assert attach_selected(operator, helper, fetch, mode="all")
