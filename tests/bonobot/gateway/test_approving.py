"""Approving: a client that can show where is sent there, and gets its result after the yes."""

from typing import Any

import pytest

from agents.approvals import answer
from agents.models import Agent, Approval
from agents.tool_policies import PolicyText, set_policy
from bonobot.tenancy.models import Organization
from mcp_servers.models import Server
from tests.agents import casting
from tests.bonobot.gateway.conftest import Wire, token_of

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
COUNT = {"name": "mcp_workshop_count", "arguments": {"what": "once"}}
SHOWS = {"elicitation": {"form": {}, "url": {}}}
KEY = "bonobot-approval"


@pytest.fixture
def asked(acme: Organization, helper: Agent, workshop: Server, wire: Wire) -> dict[str, Any]:
    """What a call is answered with that a person has to allow."""
    boss = casting.administrator(acme)
    set_policy(boss, helper, PolicyText("all", ask=("mcp_workshop_count",)))
    return wire.modern(AGENT, "tools/call", COUNT, capabilities=SHOWS).result


def back(asked: dict[str, Any], action: str = "accept") -> dict[str, Any]:
    return {"requestState": asked["requestState"], "inputResponses": {KEY: {"action": action}}}


def test_the_call_is_made_once_after_the_yes(
    acme: Organization, wire: Wire, asked: dict[str, Any], effects: Any
) -> None:
    visit = asked["inputRequests"][KEY]
    waiting = Approval.objects.get()
    assert (asked["resultType"], visit["method"]) == ("input_required", "elicitation/create")
    assert visit["params"]["url"].endswith(f"/{waiting.pk}/change/")
    answer(casting.administrator(acme), waiting, "approve")
    result = wire.modern(AGENT, "tools/call", COUNT | back(asked), capabilities=SHOWS).result
    assert (result["resultType"], effects.read_text()) == ("complete", "once\n")
    again = wire.modern(AGENT, "tools/call", COUNT | back(asked), capabilities=SHOWS).result
    assert (again["resultType"], effects.read_text()) == ("input_required", "once\n")


def test_a_person_who_does_not_go_there_ends_the_call(wire: Wire, asked: dict[str, Any]) -> None:
    declined = COUNT | back(asked, "decline")
    reply = wire.modern(AGENT, "tools/call", declined, capabilities=SHOWS)
    assert (reply.result["isError"], reply.code) == (True, "approval_required")


@pytest.mark.parametrize(
    "other",
    [
        {"arguments": {"what": "twice"}},
        {"name": "mcp_workshop_echo", "arguments": {"text": "hello"}},
        {"requestState": "forged"},
        {"requestState": 7},
    ],
)
def test_a_state_brings_no_other_call_back(
    wire: Wire, asked: dict[str, Any], other: dict[str, Any]
) -> None:
    reply = wire.modern(AGENT, "tools/call", COUNT | back(asked) | other, capabilities=SHOWS)
    assert reply.error["code"] == -32602


def test_a_state_is_nobody_elses(acme: Organization, wire: Wire, asked: dict[str, Any]) -> None:
    other = token_of(casting.administrator(acme))
    taken = COUNT | back(asked)
    reply = wire.modern(AGENT, "tools/call", taken, capabilities=SHOWS, token=other)
    assert reply.error["code"] == -32602
