"""Pending calls survive slow approvers: each kind of client gets its result an hour later."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.utils import timezone

from agents.approvals.services import resolve_approval
from agents.gateway import transports
from agents.gateway.routes import GatewayAddress
from agents.models import Agent, Approval, Session, Step
from agents.policies.services import PolicySpec, set_policy
from agents.sessions.services import start_session
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.models import Definition, Server
from tests import factories, rest
from tests.agents.gateway.conftest import GatewayClient, gateway_client, token_of
from tests.agents.gateway.test_transports import LONG_S, Pipes, pipes

__all__ = ["gateway_client", "pipes"]
pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
TOOL = "mcp_workshop_count"
COUNT = {"name": TOOL, "arguments": {"what": "once"}}
SHOWS_URLS = {"elicitation": {"form": {}, "url": {}}}
KEY = "bonobot-approval"
ACCEPTED = {"result": {"action": "accept"}}
TOOL_CALL_PATH = f"agents/helper/tools/{TOOL}/call"


@pytest.fixture
def administrator(acme: Organization) -> Principal:
    return factories.build_administrator(acme)


@pytest.fixture(autouse=True)
def approval_policy(administrator: Principal, helper: Agent, workshop: Server) -> None:
    """The agent's policy requires approval of `count`."""
    set_policy(administrator, helper, PolicySpec("all", ask=(TOOL,)))


@pytest.fixture
def pass_an_hour() -> Iterator[Callable[[], None]]:
    """A function that moves the clock by an hour and ends the windows of repeated denials."""
    with time_machine.travel(timezone.now()) as traveler:

        def move() -> None:
            get_writer().close()  # the next writer has no open windows
            traveler.shift(timedelta(hours=1))

        yield move


def approve(administrator: Principal) -> None:
    resolve_approval(administrator, Approval.objects.pending().get(), "approve")


def test_a_modern_client_repeats_the_call_an_hour_later(
    administrator: Principal,
    gateway_client: GatewayClient,
    effects: Any,
    pass_an_hour: Callable[[], None],
) -> None:
    for _ in range(3):
        assert gateway_client.modern(AGENT, "tools/call", COUNT).code == "approval_required"
        pass_an_hour()
    approve(administrator)
    result = gateway_client.modern(AGENT, "tools/call", COUNT).result
    assert (result["isError"], effects.read_text()) == (False, "once\n")
    assert AuditRow.objects.filter(code="approval_required", outcome="refused").count() == 3


def test_a_modern_client_returns_from_the_approval_page_after_days(
    acme: Organization,
    administrator: Principal,
    gateway_client: GatewayClient,
    effects: Any,
    pass_an_hour: Callable[[], None],
) -> None:
    """Its request state is valid for as long as the approval can be answered."""
    Organization.objects.filter(pk=acme.pk).update(approval_hours=72)
    response = gateway_client.modern(AGENT, "tools/call", COUNT, capabilities=SHOWS_URLS).result
    for _ in range(30):
        pass_an_hour()
    approve(administrator)
    params = {
        "requestState": response["requestState"],
        "inputResponses": {KEY: {"action": "accept"}},
    }
    result = gateway_client.modern(
        AGENT, "tools/call", COUNT | params, capabilities=SHOWS_URLS
    ).result
    assert (result["isError"], effects.read_text()) == (False, "once\n")


def test_a_handshake_client_repeats_the_call_an_hour_later(
    administrator: Principal,
    gateway_client: GatewayClient,
    effects: Any,
    pass_an_hour: Callable[[], None],
) -> None:
    session = gateway_client.handshake(AGENT)
    assert session.ask("tools/call", COUNT).code == "approval_required"
    pass_an_hour()
    assert session.ask("tools/call", COUNT).code == "approval_required"
    approve(administrator)
    result = session.ask("tools/call", COUNT).result
    assert (result["isError"], effects.read_text()) == (False, "once\n")


def test_a_handshake_client_that_waits_gets_its_result_an_hour_later(
    administrator: Principal,
    gateway_client: GatewayClient,
    effects: Any,
    settings: Any,
    pass_an_hour: Callable[[], None],
) -> None:
    """The time to answer servers' requests doesn't limit the time to approve a call."""
    settings.BONOBOT_ANSWER_S = 0.1
    session = gateway_client.handshake(AGENT, capabilities=SHOWS_URLS)
    call = session.begin("tools/call", COUNT)
    url_request = call.next()
    assert url_request is not None
    session.answer(url_request, **ACCEPTED)
    pass_an_hour()
    with pytest.raises(TimeoutError):
        call.next(within=0.5)
    approve(administrator)
    response = call.next()
    call.close()
    assert response is not None
    assert (response["result"]["isError"], effects.read_text()) == (False, "once\n")


def test_a_handshake_client_that_waits_gets_a_new_approval_when_a_changed_definition_is_approved(
    administrator: Principal, gateway_client: GatewayClient, effects: Any
) -> None:
    session = gateway_client.handshake(AGENT, capabilities=SHOWS_URLS)
    call = session.begin("tools/call", COUNT)
    url_request = call.next()
    assert url_request is not None
    session.answer(url_request, **ACCEPTED)
    replaced = Approval.objects.pending().get()
    definition = Definition.objects.get(name="count")
    definition.set_payload({**definition.payload, "description": "Also forwards customers."})
    definition.save()
    approve_definitions(administrator, definition.server, {definition.pk: definition.digest})
    response = call.next()
    call.close()
    assert response is not None
    assert response["result"]["isError"]
    approval = Approval.objects.pending().get()
    assert approval.pk != replaced.pk
    assert str(approval.pk) in str(response["result"])
    assert "approval_required" in str(response["result"])
    assert effects.read_text() == ""


def test_a_stdio_client_that_waits_gets_its_result_an_hour_later(
    administrator: Principal,
    pipes: Pipes,
    effects: Any,
    settings: Any,
    pass_an_hour: Callable[[], None],
) -> None:
    settings.BONOBOT_ANSWER_S = 0.1
    token = token_of(administrator)
    serving = get_runtime().spawn(
        transports.serve_stdio(token, GatewayAddress("agent", "helper")), name="stdio"
    )
    client = {"clientInfo": {"name": "tests", "version": "1"}, "capabilities": SHOWS_URLS}
    try:
        pipes.ask("initialize", {"protocolVersion": "2025-11-25", **client})
        pipes.tell({"method": "notifications/initialized"})
        request_id = pipes.begin("tools/call", COUNT)
        url_request = pipes.read()
        pipes.tell({"id": url_request["id"], **ACCEPTED})
        pass_an_hour()
        assert pipes.is_silent(0.5)
        approve(administrator)
        response = pipes.read()
    finally:
        pipes.hang_up()
        serving.result(timeout=LONG_S)
    pipes.close()
    assert (response["id"], response["result"]["isError"]) == (request_id, False)
    assert effects.read_text() == "once\n"


def test_a_stdio_client_repeats_the_call_an_hour_later(
    administrator: Principal, pipes: Pipes, effects: Any, pass_an_hour: Callable[[], None]
) -> None:
    token = token_of(administrator)
    serving = get_runtime().spawn(
        transports.serve_stdio(token, GatewayAddress("agent", "helper")), name="stdio"
    )
    client = {"clientInfo": {"name": "tests", "version": "1"}, "capabilities": {}}
    try:
        pipes.ask("initialize", {"protocolVersion": "2025-11-25", **client})
        pipes.tell({"method": "notifications/initialized"})
        first = pipes.ask("tools/call", COUNT)
        pass_an_hour()
        second = pipes.ask("tools/call", COUNT)
        approve(administrator)
        response = pipes.ask("tools/call", COUNT)
    finally:
        pipes.hang_up()
        serving.result(timeout=LONG_S)
    pipes.close()
    for denial in (first, second):
        assert denial["result"]["_meta"]["bonobot/problem"]["code"] == "approval_required"
    assert (response["result"]["isError"], effects.read_text()) == (False, "once\n")


@pytest.mark.parametrize("headers", [{}, {"Idempotency_Key": "one-call"}])
def test_a_rest_client_repeats_the_call_an_hour_later(
    acme: Organization,
    administrator: Principal,
    effects: Any,
    pass_an_hour: Callable[[], None],
    headers: dict[str, str],
) -> None:
    """A call that is still pending had no effect, so its idempotency key isn't used up."""
    operator = rest.as_role(acme, Role.OPERATOR)
    for _ in range(2):
        response = operator.post(TOOL_CALL_PATH, {"arguments": {"what": "once"}}, **headers)
        assert response.json["code"] == "approval_required"
        pass_an_hour()
    approve(administrator)
    response = operator.post(TOOL_CALL_PATH, {"arguments": {"what": "once"}}, **headers)
    assert (response.json["outcome"], effects.read_text()) == ("ok", "once\n")


def test_a_session_continues_an_hour_later(
    administrator: Principal,
    helper: Agent,
    effects: Any,
    run_to_rest: Callable[[Session], str],
    pass_an_hour: Callable[[], None],
) -> None:
    session = start_session(administrator, helper, f'/{TOOL} {{"what": "once"}}')
    assert run_to_rest(session) == Session.Status.WAITING
    pass_an_hour()
    approve(administrator)
    assert run_to_rest(session) == Session.Status.DONE
    step = session.steps.get(kind=Step.Kind.CALL)
    assert (step.state, effects.read_text()) == (Step.State.DONE, "once\n")


def test_a_waiting_client_is_refused_when_the_approval_expires(
    gateway_client: GatewayClient,
    effects: Any,
    pass_an_hour: Callable[[], None],
) -> None:
    session = gateway_client.handshake(AGENT, capabilities=SHOWS_URLS)
    call = session.begin("tools/call", COUNT)
    url_request = call.next()
    assert url_request is not None
    session.answer(url_request, **ACCEPTED)
    for _ in range(25):
        pass_an_hour()
    response = call.next()
    call.close()
    assert response is not None
    problem = response["result"]["_meta"]["bonobot/problem"]
    assert (problem["code"], effects.read_text()) == ("approval_expired", "")
