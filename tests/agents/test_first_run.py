"""The first run: completed steps follow from existing rows, skipped steps are stored."""

import re
from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from agents.agent_tools.services import save_settings
from agents.agent_tools.settings import Setting, ToolKey, find_inherited_setting, read_tool_setting
from agents.first_run import (
    build_example_message,
    load_first_run_progress,
    set_first_run_closed,
    set_step_skipped,
)
from agents.llm.interface import ToolSpec
from agents.llm.offline.choose_tool import choose_tools
from agents.models import Agent, ModelEndpoint, Session
from agents.policies.effective_policies import load_policy
from agents.services import attach_server
from agents.sessions.services import start_session
from bonobot.accounts.models import FirstRun, Membership, Organization
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.ledger.models import Checkpoint
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.models import Definition, Server
from tests import admin_client, factories, rest
from tests.agents.admin.test_audit import create_call
from tests.agents.admin.test_sessions import create_step

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


def list_open_steps(organization: Organization) -> list[str]:
    return [
        step.slug for step in load_first_run_progress(organization.pk).steps if not step.is_finished
    ]


def test_steps_are_completed_by_existing_rows(
    acme: Organization, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    assert list_open_steps(acme) == ["account", "connect", "ask"]
    factories.create_member(acme, Role.OWNER)
    assert list_open_steps(acme) == ["connect", "ask"]
    server = admin_client.create_web_server(acme)
    admin_client.declare_tool(server)
    assert list_open_steps(acme) == ["connect", "ask"]  # its tools aren't approved
    approve_definitions(factories.build_administrator(acme), server)
    assert list_open_steps(acme) == ["ask"]
    create_call(acme, outcome="error", code="tool_error")
    create_call(acme, outcome="refused", code="denied_by_policy")
    assert list_open_steps(acme) == ["ask"]  # no call succeeded
    assert rest.as_role(acme, Role.OPERATOR).get("first-run").json["next"] == "ask"
    create_call(acme)
    with django_assert_num_queries(1):
        assert load_first_run_progress(acme.pk).next is None


def test_a_skipped_step_is_skipped_for_all_and_can_be_undone(acme: Organization) -> None:
    factories.create_member(acme, Role.OWNER)
    administrator = factories.build_administrator(acme)
    set_step_skipped(administrator, "connect")
    set_step_skipped(administrator, "ask")
    assert list_open_steps(acme) == []
    set_step_skipped(administrator, "connect", is_skipped=False)
    assert FirstRun.objects.get().skipped == ["ask"]
    with pytest.raises(Problem):
        set_step_skipped(administrator, "nothing")
    with pytest.raises(Problem):
        set_step_skipped(factories.create_member(acme, Role.AUDITOR), "ask")


def test_skipped_steps_are_named_only_if_there_are_any(acme: Organization) -> None:
    owner = admin_client.sign_in(acme, Role.OWNER)
    administrator = factories.build_administrator(acme)
    set_step_skipped(administrator, "connect")
    set_step_skipped(administrator, "ask")
    assert "All steps are done or skipped." in owner.get("first_run")
    approve_definitions(administrator, _declare_server(acme))
    create_call(acme)
    assert "All steps are done." in owner.get("first_run")


def _declare_server(organization: Organization) -> Server:
    server = admin_client.create_web_server(organization)
    admin_client.declare_tool(server)
    return server


def test_the_dashboard_shows_the_next_step_until_the_steps_are_hidden(acme: Organization) -> None:
    owner = admin_client.sign_in(acme, Role.OWNER)
    assert "Continue: Add a server" in admin_client.get_text(owner.get("index"))
    page = admin_client.get_text(owner.post("first_run", do="skip", step="connect"))
    assert "skipped" in page
    assert "Next: Make the first governed call" in admin_client.get_text(owner.get("index"))
    assert "First steps" not in admin_client.get_text(owner.post("first_run", do="close"))
    assert "Show on dashboard" in admin_client.get_text(owner.get("first_run"))
    owner.post("first_run", do="open")
    assert "2 of 3 setup steps done" in admin_client.get_text(owner.get("index"))


def test_the_dashboard_shows_no_first_steps_to_people_who_cant_do_them(acme: Organization) -> None:
    assert "Add a server" in admin_client.sign_in(acme, Role.OPERATOR).get("index")
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    page = auditor.get("index")
    assert "Add a server" not in page
    assert admin_client.build_url("first_run") not in page
    auditor.get("first_run", status=403)
    set_first_run_closed(factories.build_administrator(acme))
    assert not load_first_run_progress(acme.pk).is_shown


@pytest.mark.django_db(transaction=True)
def test_a_model_is_saved_and_tested_and_errors_are_corrected_in_place(
    acme: Organization,
) -> None:
    administrator = admin_client.sign_in(acme, None)
    fields = {"model-name": "Mine", "model-kind": "openai", "model-model": "m"}
    fields |= {"model-base_url": "http://127.0.0.1:9/v1", "model-allow_private": "on"}
    page = administrator.post("first_run", step="ask", do="model", **fields)
    assert "model_unreachable" in page
    fields |= {"model-kind": "offline", "model-base_url": "", "model-model": "offline"}
    page = administrator.post("first_run", step="ask", do="model", **fields)
    assert "Responded in" in page
    endpoint = ModelEndpoint.objects.get()
    assert endpoint.kind == "offline"
    assert f'<option value="{endpoint.pk}"' in page  # of the agent that is created next


def test_the_example_message_is_a_sentence_with_which_the_offline_model_calls_the_tool(
    acme: Organization,
) -> None:
    server = admin_client.create_web_server(acme, "clock")
    zone = {"properties": {"timezone": {"type": "string"}}, "required": ["timezone"]}
    text = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
    reads = {"annotations": {"readOnlyHint": True}}
    approver = factories.build_administrator(acme)
    admin_client.declare_tool(server, "echo", inputSchema={"type": "object", **text})
    approve_definitions(approver, server)
    assert build_example_message(acme.pk, [server.pk]) == 'Echo with text "hello"'
    admin_client.declare_tool(
        server, "getCurrentTime", inputSchema={"type": "object", **zone}, **reads
    )
    approve_definitions(approver, server)
    message = build_example_message(acme.pk, [server.pk])
    assert message == "What time is it in Asia/Tokyo?"
    specs = [
        ToolSpec(row.name, row.description, row.payload["inputSchema"])
        for row in Definition.objects.filter(kind="tool")
    ]
    [choice] = choose_tools(message, specs)
    assert (choice.tool.name, choice.arguments) == (
        "getCurrentTime",
        ({"timezone": "Asia/Tokyo"},),
    )


@pytest.mark.parametrize(
    ("name", "parameter", "annotations"),
    [
        ("git_diff", "repo_path", {"readOnlyHint": True}),  # a path that may not exist
        ("get_issue", "issue_id", {"readOnlyHint": True}),
        ("get_page", "number", {"readOnlyHint": True}),
        ("send_note", "text", {}),
        ("clean", "query", {"destructiveHint": True}),
    ],
)
def test_the_example_message_asks_for_the_tools_if_no_call_is_sure_to_succeed(
    acme: Organization, name: str, parameter: str, annotations: dict[str, bool]
) -> None:
    server = admin_client.create_web_server(acme)
    schema = {"properties": {parameter: {"type": "string"}}, "required": [parameter]}
    admin_client.declare_tool(server, name, inputSchema=schema, annotations=annotations)
    approve_definitions(factories.build_administrator(acme), server)
    assert build_example_message(acme.pk, [server.pk]) == "What can you do?"


def test_the_first_step_of_an_organization_without_members_adds_one(acme: Organization) -> None:
    administrator = admin_client.sign_in(acme, None)
    page = administrator.get("first_run")
    assert "0 of 3 steps done." in admin_client.get_text(page)
    assert "Add a member" in page
    assert "Create your account" not in page
    assert admin_client.find_links(page, admin_client.build_url("tenancy_membership_add"))
    admin_client.sign_in(acme, Role.OPERATOR)
    page = administrator.get("first_run")
    assert "1 of 3 steps done." in admin_client.get_text(page)
    assert f"{Membership.objects.get().user.username} in Acme" in admin_client.get_text(page)


def test_presets_that_arent_enabled_are_offered_last(acme: Organization) -> None:
    set_step_skipped(factories.build_administrator(acme), "account")
    administrator = admin_client.sign_in(acme, None)
    page = administrator.get("first_run")
    offered = re.findall(r'href="[^"]*/first-run/preset/([^/"]+)/"', page)
    assert offered[0] == "microsoft-learn"
    assert offered[-1] == "time"
    text = admin_client.get_text(administrator.get("first_run_preset", "time"))
    assert "Members of Acme can't use this preset until you enable it." in text


def test_the_example_message_is_for_a_tool_of_the_agents_servers(acme: Organization) -> None:
    servers = [admin_client.create_web_server(acme, name) for name in ("docs", "pages")]
    for server, tool in zip(servers, ("find_docs", "find_pages"), strict=True):
        admin_client.declare_tool(server, tool)
        approve_definitions(factories.build_administrator(acme), server)
    attach_server(
        factories.build_administrator(acme), factories.create_agent(acme, "Helper"), servers[1]
    )
    page = admin_client.sign_in(acme, Role.OWNER).get("first_run")
    assert "Message to Helper" in page
    assert "Find pages</textarea>" in page


def test_a_failed_call_is_shown_with_its_reason_and_can_be_retried(acme: Organization) -> None:
    server = admin_client.create_web_server(acme, "docs")
    admin_client.declare_tool(server, "search")
    approve_definitions(factories.build_administrator(acme), server)
    agent = factories.create_agent(acme, "Helper")
    administrator = factories.build_administrator(acme)
    session = start_session(administrator, agent, "Use search")
    Session.objects.update(status=Session.Status.DONE)
    row = create_call(acme, outcome="error", code="tool_error", session_id=session.pk)
    create_step(session, "message", text="Use search", by="anna")
    step = create_step(session, "call", "failed", text="The index <b>is missing</b>.")
    step.call_id = row.pk
    step.save()
    owner = admin_client.sign_in(acme, Role.OWNER)
    page = owner.get("first_run")
    text = admin_client.get_text(page)
    assert "2 of 3 steps done." in text
    assert "pay didn't succeed." in text
    assert "The index &lt;b&gt;is missing&lt;/b&gt;." in page
    assert "tool_error" in text
    fields = dict(re.findall(r'name="(step|agent|text)" value="([^"]*)"', page))
    assert fields == {"step": "ask", "agent": str(agent.pk), "text": "Use search"}
    text = admin_client.get_text(owner.post("first_run", **fields))
    assert "Helper is working on “Use search”" in text
    assert "Waiting for the first call" in text  # the call of the first session isn't shown
    assert agent.sessions.count() == 2


def test_a_denied_or_pending_call_says_so_below_the_step(acme: Organization) -> None:
    server = admin_client.create_web_server(acme, "docs")
    admin_client.declare_tool(server, "search")
    approve_definitions(factories.build_administrator(acme), server)
    agent = factories.create_agent(acme, "Helper")
    owner = admin_client.sign_in(acme, Role.OWNER)
    create_call(acme, decision="deny", outcome="refused", code="denied_by_policy")
    page = admin_client.get_text(owner.get("first_run"))
    assert "pay didn't succeed." in page
    assert "denied_by_policy" in page
    details = {"approval_id": str(factories.create_approval(agent).pk)}
    create_call(acme, decision="ask", outcome="refused", code="approval_required", details=details)
    page = admin_client.get_text(owner.get("first_run"))
    assert "pay is pending approval." in page
    assert "2 of 3 steps done." in page


def test_the_first_call_creates_an_agent_with_servers_and_the_offline_model(
    acme: Organization,
) -> None:
    server = admin_client.create_web_server(acme, "docs")
    admin_client.declare_tool(server, "search")
    approve_definitions(factories.build_administrator(acme), server)
    Server.objects.update(status=Server.Status.CONNECTED)
    operator = admin_client.sign_in(acme, Role.OPERATOR)
    page = operator.get("first_run")
    assert "Offline model (no key needed)" in page
    assert "Search</textarea>" in page
    fields = {"step": "ask", "do": "call", "name": "Helper", "model": "offline"}
    page = operator.post("first_run", **fields, text="Use search", servers=[server.pk])
    assert "Helper is working on “Use search”" in admin_client.get_text(page)
    assert 'data-topic="audit"' in page
    agent = Agent.objects.get(name="Helper")
    assert [agent_server.server_id for agent_server in agent.agent_servers.all()] == [server.pk]
    assert agent.model_endpoint.kind == "offline"
    assert agent.sessions.get().title == "Use search"
    assert "mcp_docs_search" in operator.get("agents_agent_policy", agent.pk)
    assert "Message to Helper" in operator.get("first_run")  # the call wasn't made yet


def test_the_first_call_appears_below_the_steps_when_it_is_made(acme: Organization) -> None:
    server = admin_client.create_web_server(acme, "docs")
    admin_client.declare_tool(server, "search")
    approve_definitions(factories.build_administrator(acme), server)
    agent = factories.create_agent(acme, "Helper")
    owner = admin_client.sign_in(acme, Role.OWNER)
    owner.post("first_run", step="ask", agent=agent.pk, text="Use search")
    session = agent.sessions.get()
    url = f"{admin_client.build_url('first_run')}?session={session.pk}"
    script = {"Bonobot-Fragment": "1"}
    page = owner.client.get(url, headers=script).content.decode()
    assert "Waiting for the first call" in page
    assert "<html" not in page
    Session.objects.update(status=Session.Status.DONE)
    page = owner.client.get(url, headers=script).content.decode()
    assert "The session ended without a call." in page
    assert "Message to Helper" in page
    create_call(acme)
    page = admin_client.get_text(owner.client.get(url, headers=script).content.decode())
    assert "Your first governed call" in page
    assert "Succeeded" in page


def test_a_taken_name_is_corrected_in_place(acme: Organization) -> None:
    taken = factories.create_agent(acme)
    fields = {"step": "ask", "do": "call", "model": taken.model_endpoint_id, "text": "Hello"}
    page = admin_client.sign_in(acme, Role.OWNER).post("first_run", **fields, name=taken.name)
    assert "name_taken" in page
    assert "Create agent and send" in page
    assert Agent.objects.get() == taken


def test_the_switch_of_a_server_turns_its_tools_of_a_new_agent_off(acme: Organization) -> None:
    server = admin_client.create_web_server(acme, "docs")
    admin_client.declare_tool(server, "search")
    operator = admin_client.sign_in(acme, Role.OPERATOR)
    fields = {"step": "ask", "do": "call", "name": "Clerk", "model": "offline", "text": "Hello"}
    operator.post("first_run", **fields, servers=[server.pk])
    agent = Agent.objects.get(name="Clerk")
    key = ToolKey("mcp", server.pk, "search")
    assert find_inherited_setting(key, load_policy("agent", agent.pk).policy) == Setting.ALLOW
    reader = ToolKey("builtin", None, "read_result")
    assert read_tool_setting(reader, load_policy("agent", agent.pk)) == Setting.ALLOW
    administrator = factories.build_administrator(acme)
    save_settings(administrator, agent, {}, {server.pk: Setting.DENY})
    assert find_inherited_setting(key, load_policy("agent", agent.pk).policy) == Setting.DENY


def test_servers_that_were_added_are_reviewed_from_the_step(acme: Organization) -> None:
    server = admin_client.create_web_server(acme, "docs")
    admin_client.declare_tool(server, "search", description="Searches the documents.")
    url = f"{admin_client.build_url('first_run_added')}?servers={server.pk.hex}"
    assert admin_client.find_links(admin_client.sign_in(acme, Role.OWNER).get("first_run"), url)
    page = admin_client.get_text(admin_client.sign_in(acme, Role.OPERATOR).get("first_run"))
    assert "Contact an owner or reviewer" in page


def test_the_step_leads_to_all_servers_if_it_lists_some_of_them(acme: Organization) -> None:
    for number in range(12):
        admin_client.create_web_server(acme, f"web{number}")
    owner = admin_client.sign_in(acme, Role.OWNER)
    assert "Show all 12 servers" in admin_client.get_text(owner.get("first_run", step="connect"))
    Server.objects.filter(name__in=("web0", "web1")).delete()
    assert "Show all" not in admin_client.get_text(owner.get("first_run", step="connect"))


def test_the_first_call_is_shown_with_its_decision(acme: Organization) -> None:
    server = admin_client.create_web_server(acme, "docs")
    admin_client.declare_tool(server, "search")
    approve_definitions(factories.build_administrator(acme), server)
    create_call(acme)
    page = admin_client.get_text(admin_client.sign_in(acme, Role.OWNER).get("first_run"))
    assert "Your first governed call" in page
    assert "docs: 1 tool approved" in page
    assert "Open entry" in page


def test_the_first_call_stays_the_first_when_later_ones_succeed(acme: Organization) -> None:
    now = timezone.now()
    create_call(acme, tool_name="denied", outcome="refused", opened_at=now - timedelta(hours=3))
    create_call(acme, tool_name="first", opened_at=now - timedelta(hours=2))
    create_call(acme, tool_name="later", opened_at=now)
    page = admin_client.get_text(admin_client.sign_in(acme, Role.OWNER).get("first_run"))
    assert ": first " in page
    assert "later" not in page


def test_a_later_call_is_not_called_the_first_when_the_first_can_be_pruned(
    acme: Organization,
) -> None:
    create_call(acme, tool_name="later")
    Checkpoint.objects.create(
        id=uuid4(), organization_id=acme.pk, seq=5, digest="0" * 64, statement=""
    )
    page = admin_client.get_text(admin_client.sign_in(acme, Role.OWNER).get("first_run"))
    assert "Your first governed call" not in page
    assert "Your first call appears here" not in page
    assert "later" not in page


def test_only_connected_servers_with_approved_tools_are_offered(acme: Organization) -> None:
    administrator = factories.build_administrator(acme)
    for name, status in (("failed", "error"), ("empty", "connected"), ("ready", "connected")):
        server = admin_client.create_web_server(acme, name)
        Server.objects.filter(pk=server.pk).update(status=status)
        admin_client.declare_tool(server, "search")
        if name != "empty":
            approve_definitions(administrator, server)
    page = admin_client.sign_in(acme, Role.OWNER).get("first_run")
    boxes = re.findall(r'<input type="checkbox" name="servers"[^>]*>', page)
    assert [str(Server.objects.get(name="ready").pk) in box for box in boxes] == [True]
    assert "checked" in boxes[0]
    unusable = admin_client.get_text(page.partition("These servers can be attached when")[2])
    assert "empty No approved tools failed cancel failed" in unusable


def test_the_ways_to_add_a_server_have_the_names_of_the_tabs(acme: Organization) -> None:
    owner = admin_client.sign_in(acme, Role.OWNER)
    names = ["Presets", "URL", "Paste JSON", "OpenAPI", "HTTP operations", "Enter manually"]
    assert " ".join(names) in admin_client.get_text(owner.get("first_run"))
    assert " ".join(names) in admin_client.get_text(owner.get("first_run_url"))


def test_the_next_step_opens_when_all_definitions_are_approved(acme: Organization) -> None:
    owner = admin_client.sign_in(acme, Role.OWNER)
    server = admin_client.create_web_server(acme, "docs")
    tools = [admin_client.declare_tool(server, name) for name in ("search", "read")]
    Server.objects.filter(pk=server.pk).update(discovered_at=timezone.now())
    url = f"{admin_client.build_url('first_run_added')}?servers={server.pk.hex}"
    first, second = (f"{tool.pk}:{tool.digest}" for tool in tools)
    assert "1 definition to review" in owner.send(url, {"seen": first})
    page = owner.send(url, {"seen": second})
    assert "1 definition approved." in page
    assert "Create agent and send" in page


def test_servers_can_be_added_every_way_and_return_to_the_step(acme: Organization) -> None:
    owner = admin_client.sign_in(acme, Role.OWNER)
    for page_name in ("presets", "paste", "openapi", "operations", "form"):
        assert admin_client.build_url(f"first_run_{page_name}") in owner.get("first_run_paste")
        owner.get(f"first_run_{page_name}")
    assert admin_client.build_url("first_run_paste") in owner.get("first_run")
    text = '{"mcpServers": {"docs": {"url": "https://mcp.example.com/mcp"}}}'
    page = owner.post("first_run_paste", text=text, do="add")
    assert admin_client.find_links(page, admin_client.build_url("first_run"))
    assert Server.objects.get().name == "docs"
    assert "docs" in owner.get("first_run")


def test_rest_and_the_command_line_skip_and_hide_steps(acme: Organization) -> None:
    factories.create_member(acme, Role.OWNER)
    operator = rest.as_role(acme, Role.OPERATOR)
    progress = operator.get("first-run").json
    assert [step["slug"] for step in progress["steps"]] == ["account", "connect", "ask"]
    assert (progress["next"], progress["hidden"]) == ("connect", False)
    updated = operator.patch("first-run", {"hidden": True, "skipped": ["connect"]}).json
    assert (updated["next"], updated["hidden"]) == ("ask", True)
    updated = operator.patch("first-run", {"skipped": []}).json
    assert (updated["next"], updated["hidden"]) == ("connect", True)
    invalid = operator.patch("first-run", {"skipped": ["nothing"]})
    assert (invalid.status, invalid.code) == (400, "invalid")
    auditor = rest.as_role(acme, Role.AUDITOR)
    assert auditor.get("first-run").status == 403
    assert auditor.patch("first-run", {"hidden": False}).status == 403


def test_a_new_organization_is_offered_presets_that_need_no_account(
    acme: Organization,
) -> None:
    page = admin_client.sign_in(acme, Role.OWNER).get("first_run")
    offered = re.findall(r'href="[^"]*/first-run/preset/([^/"]+)/"', page)
    assert offered == ["microsoft-learn", "aws-knowledge", "cloudflare-documentation"]
    assert page.count("bb-preset-need") == len(offered)


def test_the_first_steps_have_the_primary_button_of_an_empty_dashboard(
    acme: Organization,
) -> None:
    page = admin_client.sign_in(acme, Role.OWNER).get("index")
    primary = re.findall(r'class="[^"]*bb-primary[^"]*"[^>]*>([^<]*)', page)
    assert [text.strip() for text in primary] == ["Continue: Add a server"]
