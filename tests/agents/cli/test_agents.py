"""`bonobot agents|tokens|audit …`."""

import asyncio

import pytest
from django.utils import timezone

from agents.llm.offline.model import OfflineModel
from agents.models import Session
from agents.sessions import leases
from agents.sessions.services import start_session
from bonobot.accounts.models import Token
from bonobot.accounts.tokens.services import authenticate_token
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def agent(acme):
    """An agent without servers."""
    return factories.create_agent(acme, "helper", mode="none")


@pytest.fixture
def time_server(acme, agent):
    """A server that was started, asked for its tools and attached to the agent."""
    return factories.approve_server(acme, factories.create_stdio_server(acme), agent)


def test_agents_are_listed_with_their_slug(bonobot, time_server):
    (shown,) = bonobot("agents", "list", "--json").json
    assert (shown["slug"], shown["servers"]) == ("helper", ["time"])
    assert shown["policy"]["mode"] == "none"


def test_an_agent_is_created_with_a_policy_that_denies_everything(bonobot, agent):
    assert bonobot("agents", "add", "Second Helper", "--json").json["slug"] == "second-helper"
    ran = bonobot("agents", "add", "Second Helper", "--json")
    assert (ran.status, ran.error["code"]) == (1, "name_taken")


def test_a_run_waits_for_the_answer_and_lists_its_calls(bonobot, time_server):
    bonobot("agents", "policy", "helper", "--mode", "allowlist", "--allow", "mcp_time_*")
    ran = bonobot("agents", "run", "helper", "What time is it in Asia/Tokyo?", "--json")
    assert (ran.status, ran.json["status"]) == (0, "done")
    assert [call["name"] for call in ran.json["calls"]] == ["mcp_time_get_current_time"]
    assert "Asia/Tokyo" in ran.json["answer"]


def test_a_run_for_people_shows_calls_and_answer(bonobot, time_server):
    bonobot("agents", "policy", "helper", "--mode", "all")
    ran = bonobot("agents", "run", "helper", "What time is it in Asia/Tokyo?")
    assert "✓ mcp_time_get_current_time" in ran.out
    assert "Asia/Tokyo" in ran.out


def test_a_run_that_takes_too_long_says_whether_it_continues(bonobot, agent, monkeypatch):
    async def think(*messages, **options):
        await asyncio.Event().wait()

    monkeypatch.setattr(OfflineModel, "request", think)
    ran = bonobot("agents", "run", "helper", "hello", "--timeout", "0.5", "--json")
    assert ran.error["code"] == "still_running"
    assert "This command ran it" in ran.error["remedy"]
    session = Session.objects.get()
    bonobot("agents", "cancel", str(session.pk))
    eventually(lambda: Session.objects.get().status == Session.Status.CANCELLED)
    leases.register_runner()  # a worker
    ran = bonobot("agents", "run", "helper", "hello", "--timeout", "0.1", "--json")
    assert "It continues to run." in ran.error["remedy"]


@pytest.mark.parametrize(
    ("slug", "text", "code"), [("nobody", "hello", "not_found"), ("helper", "  ", "invalid")]
)
def test_a_run_that_cant_start_fails(bonobot, agent, slug, text, code):
    ran = bonobot("agents", "run", slug, text, "--json")
    assert (ran.status, ran.error["code"]) == (1, code)


def test_the_policy_shows_the_allowed_tools(bonobot, time_server):
    ran = bonobot(
        "agents",
        "policy",
        "helper",
        "--mode",
        "allowlist",
        "--allow",
        "mcp_time_convert_time",
        "--json",
    )
    allowed = {tool["name"] for tool in ran.json["tools"] if tool["allowed"]}
    assert allowed == {"mcp_time_convert_time"}
    assert {"mcp_time_get_current_time", "read_result"} <= {t["name"] for t in ran.json["tools"]}


def test_a_rule_without_a_server_is_refused_with_its_position(bonobot, time_server):
    ran = bonobot("agents", "policy", "helper", "--allow", "mcp_nothing_*", "--json")
    assert (ran.status, ran.error["field"]) == (1, "allow[0]")


def test_explain_names_the_first_denying_stage(bonobot, time_server):
    told = bonobot("agents", "explain", "helper", "mcp_time_convert_time", "--json").json
    assert (told["allowed"], told["code"]) == (False, "denied_by_policy")
    assert [one["stage"] for one in told["stages"] if not one["allows"]] == [told["first"]]


def test_a_token_is_printed_once_and_authenticates(bonobot, agent):
    made = bonobot(
        "tokens", "create", "ci", "--role", "operator", "--agent", "helper", "--json"
    ).json
    token = authenticate_token(made["token"])
    assert (token.name, token.role, token.agent_ids) == ("ci", "operator", [str(agent.pk)])
    listed = bonobot("tokens", "list", "--json")
    assert made["token"] not in listed.out
    bonobot("tokens", "revoke", made["key"])
    assert not Token.objects.usable().exists()


def test_a_token_is_updated_and_extended_only_explicitly(bonobot, agent):
    made = bonobot(
        *("tokens", "create", "ide", "--role", "member", "--agent", "helper", "--expires", "90d"),
        *("--scope", "mcp:tools", "--scope", "mcp:agents", "--network", "10.0.0.0/8", "--json"),
    ).json
    assert (made["scopes"], made["networks"]) == (["mcp:tools", "mcp:agents"], ["10.0.0.0/8"])
    assert made["expires_at"] > timezone.now().isoformat(" ")
    changed = bonobot(
        *("tokens", "set", made["key"], "--name", "IDE", "--client", "zed", "--expires", "never"),
        *("--calls-per-minute", "9", "--clear", "networks", "--json"),
    ).json
    expected = {
        "name": "IDE",
        "client": "zed",
        "expires_at": None,
        "calls_per_minute": 9,
        "networks": [],
        "scopes": ["mcp:tools", "mcp:agents"],
        "agents": [str(agent.pk)],
    }
    assert changed.items() >= expected.items()
    assert "token" not in changed


@pytest.mark.parametrize("time", ["2020-01-01", "0d", "soon"])
def test_a_token_cant_expire_in_the_past(bonobot, agent, time):
    ran = bonobot("tokens", "create", "ide", "--role", "member", "--expires", time, "--json")
    assert (ran.status, ran.error["field"]) == (1, "--expires")


def test_the_audit_log_is_listed_newest_first_and_verifies(bonobot, time_server):
    rows = bonobot("audit", "list", "--json").json
    assert [row["seq"] for row in rows] == sorted((row["seq"] for row in rows), reverse=True)
    assert bonobot("audit", "verify", "--json").json["ok"] is True


def test_a_tampered_audit_log_fails_verification(bonobot, agent, acme):
    from django.db import connection

    row = AuditRow.objects.order_by("seq").first()
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE ledger_auditrow SET opened = replace(opened, 'a', 'b') WHERE seq = %s",
            [row.seq],
        )
    ran = bonobot("audit", "verify", "--json")
    assert (ran.status, ran.json["ok"]) == (1, False)


def test_with_several_organizations_one_must_be_specified(bonobot, agent):
    factories.create_organization("other")
    ran = bonobot("agents", "list", "--json")
    assert (ran.status, ran.error["field"]) == (1, "--org")
    assert bonobot("agents", "list", "--org", "other", "--json").json == []
    assert bonobot("agents", "list", "--org", "nowhere", "--json").error["code"] == "not_found"


def test_the_organizations_policy_is_shown_and_updated(bonobot, acme):
    rule = '{"tool": "read_result", "when": {"required": ["id"]}}'
    ran = bonobot("agents", "policy", "--organization", "--ask", rule, "--deny", "mcp_*", "--json")
    said = {"tool": "read_result", "when": {"required": ["id"]}}
    now = {"mode": "all", "allow": [], "ask": [said], "deny": ["mcp_*"]}
    assert ran.json == {**now, "draft": None}
    assert "deny mcp_*" in bonobot("agents", "policy", "--organization").out
    wrong = bonobot("agents", "policy", "--organization", "--ask", '{"tool": 1}', "--json")
    assert wrong.error["code"] == "invalid"


def test_an_agent_is_disabled_and_enabled(bonobot, acme):
    agent = factories.create_agent(acme)
    session = start_session(factories.build_administrator(acme), agent, "hello")
    ran = bonobot("agents", "disable", agent.slug, "--json")
    assert ran.json == {"slug": agent.slug, "enabled": False}
    session.refresh_from_db()
    assert session.status == Session.Status.CANCELLED
    assert bonobot("agents", "run", agent.slug, "hello", "--json").error["code"] == "agent_disabled"
    assert bonobot("agents", "enable", agent.slug, "--json").json["enabled"] is True


def test_the_limits_of_an_agent_are_shown_and_updated(bonobot, acme):
    agent = factories.create_agent(acme, "helper")
    changed = bonobot("agents", "set", "helper", "--tool-search-above", "7", "--json")
    assert (changed.status, changed.json["tool_search_above"]) == (0, 7)
    agent.refresh_from_db()
    assert (agent.tool_search_above, agent.max_turns) == (7, changed.json["max_turns"])
    for wrong in ("--tool-search-above", "--max-turns"):
        refused = bonobot("agents", "set", "helper", wrong, "-1", "--json")
        assert (refused.status, refused.error["field"]) == (1, wrong)
    assert bonobot("agents", "set", "helper", "--json").json == changed.json


def test_instructions_and_model_of_an_agent_are_set(acme, bonobot, tmp_path):
    factories.create_agent(acme, "helper")
    file = tmp_path / "helper.md"
    file.write_text("Answer briefly.", encoding="utf-8")
    bonobot("models", "add", "Other", "--kind", "anthropic", "--model", "claude-opus-5")
    changed = bonobot(
        *("agents", "set", "helper", "--model", "other", "--instructions-file", str(file)),
        *("--name", "Assistant", "--description", "Helps.", "--json"),
    ).json
    expected = ("Assistant", "Helps.", "other", "Answer briefly.")
    assert tuple(changed[n] for n in ("name", "description", "model", "instructions")) == expected
    assert bonobot("agents", "set", "helper", "--json").json == changed
    unknown = bonobot("agents", "set", "helper", "--model", "nothing", "--json")
    assert unknown.error["code"] == "not_found"


def test_a_token_is_revoked_by_its_name_unless_several_have_it(acme, bonobot):
    for name in ("ci", "twin", "twin"):
        bonobot("tokens", "create", name, "--role", "auditor")
    assert bonobot("tokens", "revoke", "ci", "--json").json["revoked_at"]
    assert bonobot("tokens", "revoke", "ci", "--json").error["code"] == "not_found"
    assert bonobot("tokens", "revoke", "twin", "--json").error["code"] == "ambiguous_name"


def test_an_entry_of_the_audit_log_is_shown_by_its_number_and_its_id(acme, bonobot):
    factories.create_agent(acme, "helper")
    [listed] = [
        row for row in bonobot("audit", "list", "--json").json if row["action"] == "agent_added"
    ]
    shown = bonobot("audit", "show", str(listed["seq"]), "--json").json
    assert (shown["id"], shown["resource_name"]) == (listed["id"], "Helper")
    assert bonobot("audit", "show", listed["id"], "--json").json == shown
    assert "resource_name\tHelper" in bonobot("audit", "show", str(listed["seq"])).out
    for unknown in ("9" * 18, "9" * 30, "nothing"):
        assert bonobot("audit", "show", unknown, "--json").error["code"] == "not_found"
