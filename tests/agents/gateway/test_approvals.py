"""Approving: a client that can show where is sent there, and gets its result after the yes."""

from typing import Any

import pytest

from agents.approvals.services import resolve_approval
from agents.gateway import approvals
from agents.models import Agent, Approval
from agents.policies.services import PolicySpec, set_policy
from bonobot.accounts.models import Organization
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Server
from tests import factories
from tests.agents.gateway.conftest import Session, Wire, token_of
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
COUNT = {"name": "mcp_workshop_count", "arguments": {"what": "once"}}
SHOWS = {"elicitation": {"form": {}, "url": {}}}
KEY = "bonobot-approval"


@pytest.fixture
def asked(acme: Organization, helper: Agent, workshop: Server, wire: Wire) -> dict[str, Any]:
    """What a call is answered with that a person has to allow."""
    boss = factories.build_administrator(acme)
    set_policy(boss, helper, PolicySpec("all", ask=("mcp_workshop_count",)))
    return wire.modern(AGENT, "tools/call", COUNT, capabilities=SHOWS).result


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have answers looked for often."""
    monkeypatch.setattr(approvals, "POLL_INTERVAL_S", 0.05)


def back(asked: dict[str, Any], action: str = "accept") -> dict[str, Any]:
    return {"requestState": asked["requestState"], "inputResponses": {KEY: {"action": action}}}


def test_the_call_runs_once_after_its_approval(
    acme: Organization, wire: Wire, asked: dict[str, Any], effects: Any
) -> None:
    visit = asked["inputRequests"][KEY]
    waiting = Approval.objects.get()
    assert (asked["resultType"], visit["method"]) == ("input_required", "elicitation/create")
    assert visit["params"]["url"].endswith(f"/{waiting.pk}/change/")
    resolve_approval(factories.build_administrator(acme), waiting, "approve")
    result = wire.modern(AGENT, "tools/call", COUNT | back(asked), capabilities=SHOWS).result
    assert (result["resultType"], effects.read_text()) == ("complete", "once\n")
    again = wire.modern(AGENT, "tools/call", COUNT | back(asked), capabilities=SHOWS).result
    assert (again["resultType"], effects.read_text()) == ("input_required", "once\n")


def test_a_client_that_repeats_before_the_answer_waits_for_it(
    acme: Organization, wire: Wire, asked: dict[str, Any], effects: Any, quick: None
) -> None:
    params = COUNT | back(asked)
    waiting = wire.listen(AGENT, params, method="tools/call", capabilities=SHOWS)
    with pytest.raises(TimeoutError):
        waiting.next(within=0.2)
    assert not effects.read_text()
    resolve_approval(factories.build_administrator(acme), Approval.objects.get(), "approve")
    told = waiting.next()
    waiting.close()
    assert told is not None
    assert (told["result"]["resultType"], effects.read_text()) == ("complete", "once\n")


def test_a_client_that_waited_long_gets_the_url_again(
    wire: Wire, asked: dict[str, Any], quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "MAX_WAIT_S", 0.0)
    again = wire.modern(AGENT, "tools/call", COUNT | back(asked), capabilities=SHOWS).result
    assert again["resultType"] == "input_required"
    assert again["inputRequests"] == asked["inputRequests"]
    assert Approval.objects.count() == 1


@pytest.fixture
def session(acme: Organization, helper: Agent, workshop: Server, wire: Wire) -> Session:
    """A session of the handshake era at an agent that asks before it counts."""
    boss = factories.build_administrator(acme)
    set_policy(boss, helper, PolicySpec("all", ask=("mcp_workshop_count",)))
    return wire.handshake(AGENT, capabilities=SHOWS)


def test_a_handshake_client_gets_the_url_and_continues_after_the_approval(
    acme: Organization, session: Session, effects: Any, quick: None
) -> None:
    calling = session.begin("tools/call", COUNT)
    visit = calling.next()
    assert visit is not None
    waiting = Approval.objects.get()
    assert visit["params"]["elicitationId"] == str(waiting.pk)
    assert visit["params"]["url"].endswith(f"/{waiting.pk}/change/")
    session.answer(visit, result={"action": "accept"})
    resolve_approval(factories.build_administrator(acme), waiting, "approve")
    done = calling.next()
    calling.close()
    assert done is not None
    assert (done["result"]["isError"], effects.read_text()) == (False, "once\n")


def test_a_session_whose_user_declines_ends_the_approval_with_the_call(
    session: Session, effects: Any
) -> None:
    calling = session.begin("tools/call", COUNT)
    visit = calling.next()
    assert visit is not None
    session.answer(visit, result={"action": "decline"})
    done = calling.next()
    calling.close()
    assert done is not None
    problem = done["result"]["_meta"]["bonobot/problem"]
    assert (done["result"]["isError"], problem["code"]) == (True, "approval_cancelled")
    assert Approval.objects.get().state == Approval.State.WITHDRAWN
    assert not effects.read_text()


@pytest.mark.parametrize("accepted", [True, False])
def test_the_approval_ends_when_the_client_cancels_the_call(
    session: Session, quick: None, accepted: bool
) -> None:
    calling = session.begin("tools/call", COUNT)
    visit = calling.next()
    assert visit is not None
    if accepted:
        session.answer(visit, result={"action": "accept"})
    session.tell("notifications/cancelled", {"requestId": calling.number})
    eventually(lambda: Approval.objects.get().state == Approval.State.WITHDRAWN)
    calling.close()
    assert AuditRow.objects.filter(action="call_taken_back").count() == 1


def test_the_approval_ends_when_the_client_ends_its_session(
    session: Session, wire: Wire, quick: None
) -> None:
    calling = session.begin("tools/call", COUNT)
    visit = calling.next()
    assert visit is not None
    session.answer(visit, result={"action": "accept"})
    assert session.end().status == 200
    eventually(lambda: Approval.objects.get().state == Approval.State.WITHDRAWN)
    calling.close()


def test_an_approval_that_was_given_is_used_although_the_user_declined(
    acme: Organization, wire: Wire, asked: dict[str, Any], effects: Any
) -> None:
    resolve_approval(factories.build_administrator(acme), Approval.objects.get(), "approve")
    declined = COUNT | back(asked, "decline")
    result = wire.modern(AGENT, "tools/call", declined, capabilities=SHOWS).result
    assert (result["resultType"], effects.read_text()) == ("complete", "once\n")


def test_the_approval_ends_when_the_user_of_a_modern_client_declines(
    wire: Wire, asked: dict[str, Any]
) -> None:
    declined = COUNT | back(asked, "decline")
    reply = wire.modern(AGENT, "tools/call", declined, capabilities=SHOWS)
    assert (reply.result["isError"], reply.code) == (True, "approval_cancelled")
    assert Approval.objects.get().state == Approval.State.WITHDRAWN


@pytest.mark.parametrize(
    "other",
    [
        {"arguments": {"what": "twice"}},
        {"name": "mcp_workshop_echo", "arguments": {"text": "hello"}},
        {"requestState": "forged"},
        {"requestState": 7},
    ],
)
def test_a_state_is_valid_only_for_its_call(
    wire: Wire, asked: dict[str, Any], other: dict[str, Any]
) -> None:
    reply = wire.modern(AGENT, "tools/call", COUNT | back(asked) | other, capabilities=SHOWS)
    assert reply.error["code"] == -32602


def test_a_state_is_valid_only_for_its_caller(
    acme: Organization, wire: Wire, asked: dict[str, Any]
) -> None:
    other = token_of(factories.build_administrator(acme))
    taken = COUNT | back(asked)
    reply = wire.modern(AGENT, "tools/call", taken, capabilities=SHOWS, token=other)
    assert reply.error["code"] == -32602
