"""`bonobot agents`, `bonobot tokens`, and `bonobot audit`."""

import asyncio

import pytest
from django.utils import timezone

from agents.llm.offline.model import OfflineModel
from agents.models import Runner, Session
from agents.sessions import leases
from agents.sessions.services import start_session
from bonobot.accounts.models import Token
from bonobot.accounts.tokens.services import authenticate_token
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)


def test_agents_are_listed_with_their_slug(bonobot, time_server):
    (row,) = bonobot("agents", "list", "--json").json
    assert (row["slug"], row["servers"]) == ("helper", ["time"])
    assert row["policy"]["mode"] == "none"


def test_an_agent_is_created_with_a_policy_that_denies_everything(bonobot, agent):
    assert bonobot("agents", "add", "Second Helper", "--json").json["slug"] == "second-helper"
    result = bonobot("agents", "add", "Second Helper", "--json")
    assert (result.status, result.error["code"]) == (1, "name_taken")


def test_a_run_waits_for_the_answer_and_lists_its_calls(bonobot, time_server):
    bonobot("agents", "policy", "helper", "--mode", "allowlist", "--allow", "mcp_time_*")
    result = bonobot("agents", "run", "helper", "What time is it in Asia/Tokyo?", "--json")
    assert (result.status, result.json["status"]) == (0, "done")
    assert [call["name"] for call in result.json["calls"]] == ["mcp_time_get_current_time"]
    assert "Asia/Tokyo" in result.json["answer"]


def test_a_run_uses_the_chosen_model(bonobot, agent):
    bonobot("models", "add", "Small", "--kind", "offline", "--selectable")
    run = bonobot("agents", "run", "helper", "hello", "--model", "small", "--json")
    assert (run.status, run.json["model_endpoint"]) == (0, "small")
    missing = bonobot("agents", "run", "helper", "hello", "--model", "large", "--json")
    assert (missing.status, missing.error["code"]) == (1, "not_found")
    options = ("--session", run.json["id"], "--model", "small", "--json")
    refused = bonobot("agents", "chat", "helper", *options)
    assert (refused.status, refused.error["field"]) == (1, "--model")


def test_a_run_returns_the_output_of_a_schema(bonobot, agent, tmp_path):
    path = tmp_path / "schema.json"
    path.write_text('{"type": "object", "properties": {"count": {"type": "integer"}}}')
    run = bonobot("agents", "run", "helper", "hi", "--output-schema", str(path), "--json")
    assert (run.status, run.json["output"]) == (0, {"count": 0})
    changed = bonobot("agents", "set", "helper", "--output-schema", str(path), "--json")
    assert changed.json["output_schema"]["type"] == "object"
    changed = bonobot("agents", "set", "helper", "--output-schema", "", "--json")
    assert changed.json["output_schema"] is None
    path.write_text("[]")
    refused = bonobot("agents", "run", "helper", "hi", "--output-schema", str(path), "--json")
    assert (refused.status, refused.error["field"]) == (1, "--output-schema")


def test_a_run_for_people_shows_calls_and_answer(bonobot, time_server):
    bonobot("agents", "policy", "helper", "--mode", "all")
    result = bonobot("agents", "run", "helper", "What time is it in Asia/Tokyo?")
    assert "✓ mcp_time_get_current_time" in result.out
    assert "Asia/Tokyo" in result.out


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
    Runner.objects.filter(pk=leases.register_runner()).update(host="worker.example.com")
    ran = bonobot("agents", "run", "helper", "hello", "--timeout", "0.1", "--json")
    assert "It continues to run." in ran.error["remedy"]


@pytest.mark.parametrize(
    ("slug", "text", "code"), [("nobody", "hello", "not_found"), ("helper", "  ", "invalid")]
)
def test_a_run_that_cant_start_fails(bonobot, agent, slug, text, code):
    result = bonobot("agents", "run", slug, text, "--json")
    assert (result.status, result.error["code"]) == (1, code)


def test_a_token_is_printed_once_and_authenticates(bonobot, agent):
    created = bonobot(
        "tokens", "create", "ci", "--role", "operator", "--agent", "helper", "--json"
    ).json
    token = authenticate_token(created["token"])
    assert (token.name, token.role, token.agent_ids) == ("ci", "operator", [str(agent.pk)])
    result = bonobot("tokens", "list", "--json")
    assert created["token"] not in result.out
    bonobot("tokens", "revoke", created["key"])
    assert not Token.objects.usable().exists()


def test_a_token_is_updated_and_extended_only_explicitly(bonobot, agent):
    created = bonobot(
        *("tokens", "create", "ide", "--role", "member", "--agent", "helper", "--expires", "90d"),
        *("--scope", "mcp:tools", "--scope", "mcp:agents", "--network", "10.0.0.0/8", "--json"),
    ).json
    assert (created["scopes"], created["networks"]) == (["mcp:tools", "mcp:agents"], ["10.0.0.0/8"])
    assert created["expires_at"] > timezone.now().isoformat(" ")
    updated = bonobot(
        *(
            "tokens",
            "set",
            created["key"],
            "--name",
            "IDE",
            "--client",
            "zed",
            "--expires",
            "never",
        ),
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
    assert updated.items() >= expected.items()
    assert "token" not in updated


@pytest.mark.parametrize("time", ["2020-01-01", "0d", "soon"])
def test_a_token_cant_expire_in_the_past(bonobot, agent, time):
    result = bonobot("tokens", "create", "ide", "--role", "member", "--expires", time, "--json")
    assert (result.status, result.error["field"]) == (1, "--expires")


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
    result = bonobot("audit", "verify", "--json")
    assert (result.status, result.json["ok"]) == (1, False)


def test_with_several_organizations_one_must_be_specified(bonobot, agent):
    factories.create_organization("other")
    result = bonobot("agents", "list", "--json")
    assert (result.status, result.error["field"]) == (1, "--org")
    assert bonobot("agents", "list", "--org", "other", "--json").json == []
    assert bonobot("agents", "list", "--org", "nowhere", "--json").error["code"] == "not_found"


def test_an_agent_is_disabled_and_enabled(bonobot, acme):
    agent = factories.create_agent(acme)
    session = start_session(factories.build_administrator(acme), agent, "hello")
    result = bonobot("agents", "disable", agent.slug, "--json")
    assert result.json == {"slug": agent.slug, "enabled": False}
    session.refresh_from_db()
    assert session.status == Session.Status.CANCELLED
    assert bonobot("agents", "run", agent.slug, "hello", "--json").error["code"] == "agent_disabled"
    assert bonobot("agents", "enable", agent.slug, "--json").json["enabled"] is True


def test_the_limits_of_an_agent_are_shown_and_updated(bonobot, acme):
    agent = factories.create_agent(acme, "helper")
    updated = bonobot(
        "agents", "set", "helper", "--tool-search-above", "7", "--tools-in-prompt", "--json"
    )
    assert (updated.status, updated.json["tool_search_above"]) == (0, 7)
    assert updated.json["tools_in_prompt"] is True
    agent.refresh_from_db()
    assert (agent.tool_search_above, agent.max_turns) == (7, updated.json["max_turns"])
    for option in ("--tool-search-above", "--max-turns"):
        denied = bonobot("agents", "set", "helper", option, "-1", "--json")
        assert (denied.status, denied.error["field"]) == (1, option)
    assert bonobot("agents", "set", "helper", "--json").json == updated.json


def test_instructions_and_model_of_an_agent_are_set(acme, bonobot, tmp_path):
    factories.create_agent(acme, "helper")
    file = tmp_path / "helper.md"
    file.write_text("Answer briefly.", encoding="utf-8")
    bonobot("models", "add", "Other", "--kind", "anthropic", "--model", "claude-opus-5")
    updated = bonobot(
        *("agents", "set", "helper", "--model", "other", "--instructions-file", str(file)),
        *("--name", "Assistant", "--description", "Helps.", "--json"),
    ).json
    expected = ("Assistant", "Helps.", "other", "Answer briefly.")
    assert (
        tuple(updated[name] for name in ("name", "description", "model", "instructions"))
        == expected
    )
    assert bonobot("agents", "set", "helper", "--json").json == updated
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
    [listed_entry] = [
        row for row in bonobot("audit", "list", "--json").json if row["action"] == "agent_created"
    ]
    entry = bonobot("audit", "show", str(listed_entry["seq"]), "--json").json
    assert (entry["id"], entry["resource_name"]) == (listed_entry["id"], "Helper")
    assert bonobot("audit", "show", listed_entry["id"], "--json").json == entry
    assert "resource_name\tHelper" in bonobot("audit", "show", str(listed_entry["seq"])).out
    for unknown in ("9" * 18, "9" * 30, "nothing"):
        assert bonobot("audit", "show", unknown, "--json").error["code"] == "not_found"
