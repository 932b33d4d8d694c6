"""Calls at `/mcp` whose outcome can't be recorded or that exceed the rate limit."""

from typing import Any

import pytest

from agents.models import Agent, Session
from bonobot.ledger.models import AuditRow
from tests.agents.calls.test_pipeline_audit_failure import LONG, Away, away
from tests.agents.gateway.organization_server.conftest import Client
from tests.wait import eventually

__all__ = ["away"]
pytestmark = pytest.mark.django_db(transaction=True)

HELLO = {"message": "hello", "wait_s": 0}


def test_a_call_whose_outcome_cant_be_recorded_is_reported_as_run(
    helper: Agent, client: Client, away: Away
) -> None:
    away.tries = LONG
    reply = client.call("helper_chat", HELLO)
    assert reply.code == "outcome_unrecorded"
    assert Session.objects.count() == 1
    away.tries = 0
    rows = AuditRow.objects.filter(action="gateway_call")
    eventually(lambda: rows.get().outcome == "ok", what="the outcome")


def test_the_rate_limit_of_the_installation_applies(
    helper: Agent, client: Client, settings: Any
) -> None:
    settings.BONOBOT_GLOBAL_CALLS_PER_MINUTE = 1
    assert "structuredContent" in client.call("helper_chat", HELLO).result
    assert client.call("helper_chat", HELLO).code == "rate_limited"
    assert Session.objects.count() == 1
