"""`bonobot org`: the kill switch, the rate limit, and settings of approvals."""

from agents.sessions.services import start_session
from bonobot.accounts.models import Organization
from tests import factories


def test_the_kill_switch_requires_confirmation_and_counts_running_sessions(bonobot, acme):
    start_session(factories.build_administrator(acme), factories.create_agent(acme), "hello")
    result = bonobot("org", "halt", "--json")
    assert (result.status, result.error["code"]) == (1, "not_confirmed")
    assert "1 running" in result.error["detail"]
    assert Organization.objects.get().halted_at is None


def test_halt_show_and_resume_print_the_state(bonobot, acme):
    halted = bonobot("org", "halt", "--yes", "--reason", "drill", "--json")
    assert halted.status == 0
    assert halted.json["halted_at"]
    assert "The kill switch is enabled." in bonobot("org", "show").out
    result = bonobot("agents", "run", factories.create_agent(acme).slug, "hello", "--json")
    assert (result.status, result.error["code"]) == (1, "kill_switch_enabled")
    assert bonobot("org", "resume", "--json").json["halted_at"] is None
    text = bonobot("org", "show").out
    assert "kill switch" not in text
    assert "halted" not in text


def test_the_rate_limit_is_set_and_reset_to_the_default(bonobot, acme):
    assert bonobot("org", "set", "--calls-per-minute", "600", "--json").json[
        "calls_per_minute"
    ] == (600)
    assert Organization.objects.get().calls_per_minute == 600
    organization = bonobot(
        "org", "set", "--calls-per-minute", "default", "--four-eyes", "--json"
    ).json
    assert (organization["calls_per_minute"], organization["four_eyes"]) == (None, True)
    assert bonobot("org", "set", "--json").error["code"] == "invalid"


def test_numbers_that_are_too_large_are_refused(bonobot, acme):
    for option in (("--calls-per-minute", "-1"), ("--approval-hours", "9999")):
        result = bonobot("org", "set", "=".join(option), "--json")
        assert (result.status, result.error["code"]) == (1, "invalid")
