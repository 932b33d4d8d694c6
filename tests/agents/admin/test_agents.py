"""Agents in the admin: listed, created, configured, disabled, deleted."""

import json
import re
from typing import Any

import pytest
from django.utils import timezone

from agents.budgets.limits import BudgetLimit, build_budget_key
from agents.budgets.services import BudgetLine, set_budgets
from agents.models import Agent, Budget
from agents.policies.services import PolicySpec, set_policy
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow, BudgetCell
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.models import Server
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.fixture
def operator(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OPERATOR)


def build_fields(agent: Agent, **values: Any) -> dict[str, Any]:
    names = ("name", "slug", "max_turns", "max_calls", "max_run_s", "calls_per_minute")
    names = (*names, "tool_search_above")
    fields = {name: getattr(agent, name) for name in names}
    return fields | {"model_endpoint": str(agent.model_endpoint_id)} | values


def test_the_list_shows_failing_servers(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme)
    factories.attach_server(factories.build_administrator(acme), helper, server)
    Server.objects.filter(pk=server.pk).update(status="error")
    assert "1 with problems" in admin_client.get_text(operator.get("agents_agent_changelist"))


def test_members_see_no_server_problems_in_the_list(acme: Organization, helper: Agent) -> None:
    server = admin_client.create_web_server(acme)
    factories.attach_server(factories.build_administrator(acme), helper, server)
    Server.objects.filter(pk=server.pk).update(status="error")
    member = admin_client.sign_in(acme, Role.MEMBER, "berta")
    helper.members.add(User.objects.get(username="berta"))
    page = admin_client.get_text(member.get("agents_agent_changelist"))
    assert "Helper" in page
    assert "problems" not in page
    assert "Servers" not in page


def test_a_new_agent_denies_every_tool(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme, "docs")
    fields = {"name": "Release helper", "model_endpoint": str(helper.model_endpoint_id)}
    page = operator.post("agents_agent_add", **fields, servers=[server.pk])
    agent = Agent.objects.get(slug="release-helper")
    assert agent.tool_policy.mode == "none"
    assert [attached.server_id for attached in agent.agent_servers.all()] == [server.pk]
    assert "Choose which tools it can use." in page


def test_the_form_of_a_new_agent_says_which_servers_work_and_how_many_tools_they_have(
    acme: Organization, operator: admin_client.AdminClient
) -> None:
    crm = admin_client.create_web_server(acme, "crm")
    for name in ("add", "find"):
        admin_client.declare_tool(crm, name)
    broken = admin_client.create_web_server(acme, "docs")
    Server.objects.filter(pk=crm.pk).update(status="connected")
    Server.objects.filter(pk=broken.pk).update(status="error")
    page = admin_client.get_text(operator.get("agents_agent_add"))
    assert re.search(r"crm 0 of 2 tools callable .*docs cancel failed", page)
    approve_definitions(factories.build_administrator(acme), crm)
    assert "crm 2 tools" in admin_client.get_text(operator.get("agents_agent_add"))


def test_the_form_of_a_new_agent_offers_connected_servers_first(
    acme: Organization, operator: admin_client.AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.admin.agents.MAX_OFFERED_SERVERS", 2)
    for name, status in (("alpha", "error"), ("bravo", "needs_reauth"), ("time-b", "connected")):
        server = admin_client.create_web_server(acme, name)
        Server.objects.filter(pk=server.pk).update(status=status)
    page = admin_client.get_text(operator.get("agents_agent_add"))
    assert page.index("time-b") < page.index("alpha")
    assert "bravo" not in page


def test_the_form_of_a_new_agent_names_the_servers_that_it_leaves_out(
    acme: Organization, operator: admin_client.AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.admin.agents.MAX_OFFERED_SERVERS", 1)
    for name in ("crm", "docs"):
        admin_client.create_web_server(acme, name)
    fetch = admin_client.create_web_server(acme, "fetch")
    Server.objects.filter(pk=fetch.pk).update(enabled=False)
    page = operator.get("agents_agent_add")
    text = admin_client.get_text(page)
    assert "Disabled servers can't be attached. Enable them first: fetch" in text
    assert "1 more server can be attached after the agent is created." in text
    assert admin_client.build_url("mcp_servers_server_change", fetch.pk) in page


def test_an_agent_without_servers_leads_to_attaching_one(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    set_policy(factories.build_administrator(helper.organization), helper, PolicySpec("all"))
    page = operator.get("agents_agent_change", helper.pk)
    note = page.split("any server tools.", 1)[1].split("</a>", 1)[0]
    assert admin_client.build_url("agents_agent_servers", helper.pk) in note
    assert "Attach server" in note


def test_a_duplicate_name_is_reported_in_the_form(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    fields = {"name": "Helper", "model_endpoint": str(helper.model_endpoint_id)}
    # The slug is made of the name, so that it can be taken by another one.
    for name in ("Helper", "HELPER!"):
        page = admin_client.get_text(operator.post("agents_agent_add", **fields | {"name": name}))
        assert f"A name like '{name}' is already in use. Choose another name. name_taken" in page
        assert "Slug" not in page
    page = admin_client.get_text(operator.post("agents_agent_add", **fields | {"name": "日本"}))
    assert "The name '日本' has no letter from A to Z and no digit." in page
    assert Agent.objects.count() == 1


def test_a_model_of_another_organization_cant_be_selected(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    foreign = factories.create_agent(factories.create_organization("other")).model_endpoint_id
    fields = build_fields(helper, model_endpoint=str(foreign))
    assert "Select another one." in operator.post("agents_agent_configuration", helper.pk, **fields)


def test_a_configuration_is_updated_and_recorded(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    fields = build_fields(helper, instructions="Be brief.", max_turns=7, tools_in_prompt="on")
    operator.post("agents_agent_configuration", helper.pk, **fields)
    helper.refresh_from_db()
    assert (helper.instructions, helper.max_turns) == ("Be brief.", 7)
    assert helper.tools_in_prompt is True
    assert AuditRow.objects.filter(action="agent_updated", actor_id=operator.user.pk).count() == 1


def test_budgets_are_entered_in_dollars_tokens_and_calls(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    fields = build_fields(
        helper,
        **{
            "budget-unit": ["microusd", "tokens", "calls"],
            "budget-period": ["month", "day", "day"],
            "budget-limit": ["2.50", "10,000", ""],
            "budget-scope": ["agent", "session", "agent"],
            "budget-warn-at": ["", "60", ""],
        },
    )
    operator.post("agents_agent_configuration", helper.pk, **fields)
    rows = Budget.objects.values_list("unit", "period", "limit")
    assert sorted(rows) == [("microusd", "month", 2_500_000), ("tokens", "day", 10_000)]


def test_an_invalid_limit_changes_nothing(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    fields = build_fields(
        helper,
        **{
            "budget-unit": ["tokens"],
            "budget-period": ["day"],
            "budget-limit": ["many"],
            "budget-scope": ["agent"],
            "budget-warn-at": [""],
        },
        name="Renamed",
    )
    page = operator.post("agents_agent_configuration", helper.pk, **fields)
    assert "t a valid limit" in page
    assert Agent.objects.get().name == "Helper"


def test_the_use_of_a_budget_is_shown(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient
) -> None:
    administrator = factories.build_administrator(acme)
    set_budgets(administrator, helper, [BudgetLine("tokens", "total", 1_000)])
    limit = BudgetLimit("agent", str(helper.pk), "tokens", "total", 1_000)
    key = build_budget_key(acme.pk, limit, timezone.now())
    BudgetCell.objects.create(key=key, organization_id=acme.pk, spent=250, reserved=50)
    page = admin_client.get_text(operator.get("agents_agent_configuration", helper.pk))
    assert "250 of 1,000 used" in page
    assert "50 reserved by running calls" in page


def test_members_get_access_to_an_agent(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient
) -> None:
    member = admin_client.sign_in(acme, Role.MEMBER, "berta")
    operator.post(
        "agents_agent_configuration", helper.pk, **build_fields(helper, members=["berta"])
    )
    assert "Helper" in member.get("agents_agent_changelist")
    operator.post("agents_agent_configuration", helper.pk, **build_fields(helper))
    assert "No agents available to you" in member.get("agents_agent_changelist")


def test_an_agent_is_disabled(helper: Agent, operator: admin_client.AdminClient) -> None:
    operator.post("agents_agent_toggle", helper.pk, enabled="0")
    helper.refresh_from_db()
    assert not helper.enabled
    assert "This agent is disabled." in operator.get("agents_agent_change", helper.pk)
    page = operator.post(
        "agents_agent_configuration", helper.pk, **build_fields(helper, name="Renamed")
    )
    assert page.count('name="enabled"') == 1  # the switch in the header
    helper.refresh_from_db()
    assert (helper.name, helper.enabled) == ("Renamed", False)


def test_deleting_an_agent_requires_confirmation(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    assert "Delete Helper?" in operator.get("agents_agent_delete", helper.pk)
    assert Agent.objects.exists()
    operator.post("agents_agent_delete", helper.pk, yes="1")
    assert not Agent.objects.exists()


def test_the_confirmation_lists_what_is_deleted_with_an_agent_and_what_is_kept(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient
) -> None:
    page = admin_client.get_text(operator.get("agents_agent_delete", helper.pk))
    assert "Nothing else is affected." in page
    factories.create_answered_session(helper)
    factories.create_workflow(helper, "tell")
    set_budgets(factories.build_administrator(acme), helper, [BudgetLine("tokens", "month", 1_000)])
    page = admin_client.get_text(operator.get("agents_agent_delete", helper.pk))
    assert "You can undo this for ten minutes." in page
    assert "1 session" in page
    assert "1 workflow tell" in page
    assert "1 budget" in page
    assert "Attached servers, skills, and models are kept." in page


@pytest.mark.parametrize("role", [Role.REVIEWER, Role.AUDITOR, Role.MEMBER])
def test_other_roles_cant_change_an_agent(acme: Organization, helper: Agent, role: Role) -> None:
    person = admin_client.sign_in(acme, role)
    helper.members.add(person.user)
    fields = build_fields(helper, name="Mine")
    person.client.post(admin_client.build_url("agents_agent_configuration", helper.pk), fields)
    person.client.post(admin_client.build_url("agents_agent_delete", helper.pk))
    person.client.post(admin_client.build_url("agents_agent_toggle", helper.pk), {"enabled": "0"})
    helper.refresh_from_db()
    assert (helper.name, helper.enabled) == ("Helper", True)


def test_the_list_shows_the_model_of_each_agent(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    assert "Helper helper Offline" in admin_client.get_text(operator.get("agents_agent_changelist"))


def test_the_output_schema_is_configured(helper: Agent, operator: admin_client.AdminClient) -> None:
    schema = {"type": "object", "required": ["count"]}
    fields = build_fields(helper, output_schema=json.dumps(schema))
    operator.post("agents_agent_configuration", helper.pk, **fields)
    helper.refresh_from_db()
    assert helper.output_schema == schema
    page = operator.get("agents_agent_configuration", helper.pk)
    assert "&quot;required&quot;" in page
    for text in ("[1]", "{", '{"type": "array"}'):
        fields = build_fields(helper, output_schema=text)
        operator.post("agents_agent_configuration", helper.pk, **fields)
        helper.refresh_from_db()
        assert helper.output_schema == schema
    operator.post("agents_agent_configuration", helper.pk, **build_fields(helper, output_schema=""))
    helper.refresh_from_db()
    assert not helper.output_schema
