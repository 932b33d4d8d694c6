"""Approvals with URL elicitation: the client gets the URL, and its result after the approval."""

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
from tests.agents.gateway.conftest import GatewayClient, Session, token_of
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
COUNT = {"name": "mcp_workshop_count", "arguments": {"what": "once"}}
SHOWS = {"elicitation": {"form": {}, "url": {}}}
KEY = "bonobot-approval"


@pytest.fixture
def input_required(
    acme: Organization, helper: Agent, workshop: Server, gateway_client: GatewayClient
) -> dict[str, Any]:
    """The result of a call that needs approval."""
    administrator = factories.build_administrator(acme)
    set_policy(administrator, helper, PolicySpec("all", ask=("mcp_workshop_count",)))
    return gateway_client.modern(AGENT, "tools/call", COUNT, capabilities=SHOWS).result


def build_retry(input_required: dict[str, Any], action: str = "accept") -> dict[str, Any]:
    return {
        "requestState": input_required["requestState"],
        "inputResponses": {KEY: {"action": action}},
    }


def test_the_call_runs_once_after_its_approval(
    acme: Organization, gateway_client: GatewayClient, input_required: dict[str, Any], effects: Any
) -> None:
    elicitation = input_required["inputRequests"][KEY]
    approval = Approval.objects.get()
    assert (input_required["resultType"], elicitation["method"]) == (
        "input_required",
        "elicitation/create",
    )
    assert elicitation["params"]["url"].endswith(f"/{approval.pk}/change/")
    resolve_approval(factories.build_administrator(acme), approval, "approve")
    result = gateway_client.modern(
        AGENT, "tools/call", COUNT | build_retry(input_required), capabilities=SHOWS
    ).result
    assert (result["resultType"], effects.read_text()) == ("complete", "once\n")
    repeated = gateway_client.modern(
        AGENT, "tools/call", COUNT | build_retry(input_required), capabilities=SHOWS
    ).result
    assert (repeated["resultType"], effects.read_text()) == ("input_required", "once\n")


def test_a_client_that_repeats_before_the_answer_waits_for_it(
    acme: Organization, gateway_client: GatewayClient, input_required: dict[str, Any], effects: Any
) -> None:
    params = COUNT | build_retry(input_required)
    stream = gateway_client.listen(AGENT, params, method="tools/call", capabilities=SHOWS)
    with pytest.raises(TimeoutError):
        stream.next(within=0.2)
    assert not effects.read_text()
    resolve_approval(factories.build_administrator(acme), Approval.objects.get(), "approve")
    message = stream.next()
    stream.close()
    assert message is not None
    assert (message["result"]["resultType"], effects.read_text()) == ("complete", "once\n")


def test_a_client_that_waited_long_gets_the_url_again(
    gateway_client: GatewayClient, input_required: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "MAX_WAIT_S", 0.0)
    repeated = gateway_client.modern(
        AGENT, "tools/call", COUNT | build_retry(input_required), capabilities=SHOWS
    ).result
    assert repeated["resultType"] == "input_required"
    assert repeated["inputRequests"] == input_required["inputRequests"]
    assert Approval.objects.count() == 1


@pytest.fixture
def session(
    acme: Organization, helper: Agent, workshop: Server, gateway_client: GatewayClient
) -> Session:
    """A session of the handshake era at an agent whose policy asks for approval."""
    administrator = factories.build_administrator(acme)
    set_policy(administrator, helper, PolicySpec("all", ask=("mcp_workshop_count",)))
    return gateway_client.handshake(AGENT, capabilities=SHOWS)


def test_a_handshake_client_gets_the_url_and_continues_after_the_approval(
    acme: Organization, session: Session, effects: Any
) -> None:
    stream = session.begin("tools/call", COUNT)
    elicitation = stream.next()
    assert elicitation is not None
    approval = Approval.objects.get()
    assert elicitation["params"]["elicitationId"] == str(approval.pk)
    assert elicitation["params"]["url"].endswith(f"/{approval.pk}/change/")
    session.answer(elicitation, result={"action": "accept"})
    resolve_approval(factories.build_administrator(acme), approval, "approve")
    response = stream.next()
    stream.close()
    assert response is not None
    assert (response["result"]["isError"], effects.read_text()) == (False, "once\n")


def test_a_call_that_is_denied_while_its_client_waits_is_recorded_once(
    acme: Organization, session: Session, effects: Any
) -> None:
    stream = session.begin("tools/call", COUNT)
    elicitation = stream.next()
    assert elicitation is not None
    session.answer(elicitation, result={"action": "accept"})
    resolve_approval(factories.build_administrator(acme), Approval.objects.get(), "deny")
    response = stream.next()
    stream.close()
    assert response is not None
    problem = response["result"]["_meta"]["bonobot/problem"]
    assert (problem["code"], effects.read_text()) == ("approval_denied", "")
    calls = AuditRow.objects.filter(event_type="call").exclude(code="approval_required")
    assert calls.get().code == "approval_denied"


def test_a_session_whose_user_declines_ends_the_approval_with_the_call(
    session: Session, effects: Any
) -> None:
    stream = session.begin("tools/call", COUNT)
    elicitation = stream.next()
    assert elicitation is not None
    session.answer(elicitation, result={"action": "decline"})
    response = stream.next()
    stream.close()
    assert response is not None
    problem = response["result"]["_meta"]["bonobot/problem"]
    assert (response["result"]["isError"], problem["code"]) == (True, "approval_cancelled")
    assert Approval.objects.get().state == Approval.State.WITHDRAWN
    assert not effects.read_text()


@pytest.mark.parametrize("accepted", [True, False])
def test_the_approval_ends_when_the_client_cancels_the_call(
    session: Session, accepted: bool
) -> None:
    stream = session.begin("tools/call", COUNT)
    elicitation = stream.next()
    assert elicitation is not None
    if accepted:
        session.answer(elicitation, result={"action": "accept"})
    session.tell("notifications/cancelled", {"requestId": stream.number})
    eventually(lambda: Approval.objects.get().state == Approval.State.WITHDRAWN)
    stream.close()
    assert AuditRow.objects.filter(action="approval_request_canceled").count() == 1


def test_the_approval_ends_when_the_client_ends_its_session(
    session: Session, gateway_client: GatewayClient
) -> None:
    stream = session.begin("tools/call", COUNT)
    elicitation = stream.next()
    assert elicitation is not None
    session.answer(elicitation, result={"action": "accept"})
    assert session.end().status == 200
    eventually(lambda: Approval.objects.get().state == Approval.State.WITHDRAWN)
    stream.close()


def test_an_approved_call_runs_although_the_user_declined_the_url(
    acme: Organization, gateway_client: GatewayClient, input_required: dict[str, Any], effects: Any
) -> None:
    resolve_approval(factories.build_administrator(acme), Approval.objects.get(), "approve")
    declined = COUNT | build_retry(input_required, "decline")
    result = gateway_client.modern(AGENT, "tools/call", declined, capabilities=SHOWS).result
    assert (result["resultType"], effects.read_text()) == ("complete", "once\n")


def test_the_approval_ends_when_the_user_of_a_modern_client_declines(
    gateway_client: GatewayClient, input_required: dict[str, Any]
) -> None:
    declined = COUNT | build_retry(input_required, "decline")
    reply = gateway_client.modern(AGENT, "tools/call", declined, capabilities=SHOWS)
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
    gateway_client: GatewayClient, input_required: dict[str, Any], other: dict[str, Any]
) -> None:
    reply = gateway_client.modern(
        AGENT, "tools/call", COUNT | build_retry(input_required) | other, capabilities=SHOWS
    )
    assert reply.error["code"] == -32602


def test_a_state_is_valid_only_for_its_caller(
    acme: Organization, gateway_client: GatewayClient, input_required: dict[str, Any]
) -> None:
    other_token = token_of(factories.build_administrator(acme))
    params = COUNT | build_retry(input_required)
    reply = gateway_client.modern(
        AGENT, "tools/call", params, capabilities=SHOWS, token=other_token
    )
    assert reply.error["code"] == -32602
