"""Failing models in sessions: limited, visible retries, then the fallback."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Agent, ModelEndpoint, Session, Step
from agents.sessions import model_retries_and_fallback
from agents.sessions import services as sessions
from agents.sessions.export import build_report
from agents.sessions.worker import SessionRunner
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.agents.llm.anthropic_server import SIGNATURE, anthropic_server
from tests.agents.llm.openai_server import openai_server
from tests.agents.llm.provider_server import Refuses, Says, Streams, Waits
from tests.agents.sessions.test_turns import create_budget
from tests.bonobot.ledger.factories import load_organization_balances
from tests.wait import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("endpoint")]
BUSY = Refuses(429, {"error": {"message": "slow down"}}, {"Retry-After": "0.01"})
BROKEN = Refuses(500, {"error": {"message": "oops"}})


@pytest.fixture
def stack():
    exit_stack = AsyncExitStack()
    yield exit_stack
    get_runtime().call(exit_stack.aclose)


@pytest.fixture
def first(stack):
    """The provider of the agent's own endpoint."""
    return get_runtime().call(stack.enter_async_context, anthropic_server())


@pytest.fixture
def second(stack):
    """The provider of the fallback endpoint."""
    return get_runtime().call(stack.enter_async_context, openai_server())


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Shorten the delays between retries."""
    monkeypatch.setattr(model_retries_and_fallback, "FIRST_WAIT_S", 0.01)


@pytest.fixture
def endpoint(acme, helper, first, second):
    administrator = factories.build_administrator(acme)
    common = {"api_key": "k", "allow_private": True, "retries": 1}
    other_endpoint = save_endpoint(
        administrator,
        ModelEndpointSpec(
            name="Other",
            base_url=second.url,
            model="small",
            input_price=1_000_000,
            output_price=1_000_000,
            **common,
        ),
    )
    new_endpoint = save_endpoint(
        administrator,
        ModelEndpointSpec(
            name="Own",
            kind="anthropic",
            base_url=first.url,
            model="claude-opus-4-8",
            fallback=other_endpoint,
            input_price=2_000_000,
            output_price=10_000_000,
            **common,
        ),
    )
    helper.model_endpoint = new_endpoint
    helper.save()
    return new_endpoint


def list_notices(session, code):
    steps = session.steps.filter(kind=Step.Kind.NOTICE).order_by("seq")
    return [step.payload for step in steps if step.payload["code"] == code]


def test_a_busy_model_is_retried_and_the_retry_is_shown(first, second, run):
    first.script += [BUSY, Says("hi")]
    session = run()
    assert (session.status, build_report(session.pk)["answer"]) == (Session.Status.DONE, "hi")
    (notice,) = list_notices(session, "model_retry")
    assert "429" in notice["text"]
    assert notice["wait_s"] >= 0.01
    assert (len(first.requests), len(second.requests)) == (2, 0)
    assert session.turns == 2


def test_each_attempt_is_recorded_and_no_reservation_is_left(acme, helper, first, run):
    create_budget(helper, "tokens", 100_000)
    first.script += [BROKEN, Says("hi")]
    run()
    rows = AuditRow.objects.filter(action="agent_model_turn").order_by("seq")
    assert [row.outcome for row in rows] == ["error", "ok"]
    (cell,) = load_organization_balances(acme.pk).values()
    assert (cell.spent, cell.reserved) == (18, 0)


def test_after_its_retries_the_fallback_answers_and_is_charged(
    acme, helper, endpoint, first, second, run
):
    create_budget(helper, "microusd", 10_000_000)
    first.script += [BROKEN, BROKEN]
    second.script += [Says("instead")]
    session = run()
    assert build_report(session.pk)["answer"] == "instead"
    (notice,) = list_notices(session, "model_fallback")
    assert "Other" in notice["text"]
    turns = list(session.steps.filter(kind=Step.Kind.MODEL).order_by("seq"))
    assert [step.payload["endpoint"]["name"] for step in turns] == ["Own", "Own", "Other"]
    assert session.cost_microusd == 18  # of the endpoint that answered
    (cell,) = load_organization_balances(acme.pk).values()
    assert (cell.spent, cell.reserved) == (18, 0)
    row = AuditRow.objects.filter(action="agent_model_turn").order_by("seq").last()
    assert row.resource_id == "small"


def test_an_account_without_credit_uses_the_fallback_without_a_retry(first, second, run):
    refusal = {"type": "invalid_request_error", "message": "Your credit balance is too low."}
    first.script += [Refuses(400, {"type": "error", "error": refusal})]
    second.script += [Says("instead")]
    session = run()
    assert build_report(session.pk)["answer"] == "instead"
    assert (len(first.requests), list_notices(session, "model_retry")) == (1, [])
    failed = session.steps.filter(kind=Step.Kind.MODEL).order_by("seq").first()
    assert failed.payload["code"] == "model_no_credit"


def test_a_malformed_answer_is_retried_and_then_uses_the_fallback(first, second, run):
    first.script += [Refuses(200, "<html>not an answer</html>"), Streams([b"data: {\n\n"])]
    second.script += [Says("instead")]
    session = run()
    assert build_report(session.pk)["answer"] == "instead"
    turns = session.steps.filter(kind=Step.Kind.MODEL).order_by("seq")
    assert [step.payload.get("code") for step in turns] == ["provider_error"] * 2 + [None]


def test_the_answering_model_continues_without_reasoning_of_the_other(workshop, first, second, run):
    calls = (("c1", "mcp_workshop_echo", '{"text": "a"}'),)
    first.script += [Says(calls=calls, reasoning="a secret thought"), BROKEN, BROKEN]
    second.script += [Says(calls=calls), Says("done")]
    session = run()
    assert build_report(session.pk)["answer"] == "done"
    assert (len(first.requests), len(second.requests)) == (3, 2)
    assert [message.id for message in first.read(1).with_role("thought")] == [SIGNATURE]
    assert "secret thought" not in str(second.raw)
    assert SIGNATURE not in str(second.raw)
    assert [message.id for message in second.read(1).with_role("result")] == [
        "t0001c000",
        "t0002c000",
    ]


def test_refused_credentials_end_the_session_unless_all_failures_use_the_fallback(
    endpoint, first, second, run
):
    refusal = Refuses(401, {"error": {"message": "no"}})
    first.script += [refusal, refusal]
    second.script += [Says("instead")]
    assert run().error_code == "model_auth"
    assert second.requests == []
    ModelEndpoint.objects.filter(pk=endpoint.pk).update(fallback_on="any")
    assert build_report(run().pk)["answer"] == "instead"


def test_if_all_fail_the_last_failure_ends_the_session(first, second, run):
    first.script += [BROKEN, BROKEN]
    second.script += [BROKEN, Refuses(429, {"error": {"message": "no"}})]
    session = run()
    assert (session.status, session.error_code) == (Session.Status.FAILED, "model_rate_limited")
    assert (len(first.requests), len(second.requests)) == (2, 2)


def test_a_model_without_an_answer_is_retried_and_then_reported(first, second, run):
    first.script += [Says(""), Says("  ")]
    second.script += [Says(""), Says("")]
    session = run()
    assert (session.status, session.error_code) == (Session.Status.FAILED, "model_no_answer")
    assert session.output_tokens == 28  # its usage still counts


def test_a_broken_stream_is_retried(first, run):
    first.script += [Says("half of", cut="closed"), Says("the whole")]
    session = run()
    assert build_report(session.pk)["answer"] == "the whole"


def test_a_model_that_calls_endlessly_ends_at_the_turn_limit(workshop, helper, first, run):
    Agent.objects.filter(pk=helper.pk).update(max_turns=3)
    first.speaks = lambda request: Says(calls=(("c", "mcp_workshop_echo", '{"text": "a"}'),))
    session = run()
    assert (session.status, session.error_code) == (Session.Status.FAILED, "turns_exhausted")
    assert len(first.requests) == 3


def test_a_flood_of_calls_ends_at_the_limit_without_running_any(
    workshop, helper, first, run, effects
):
    Agent.objects.filter(pk=helper.pk).update(max_calls=5)
    flood = tuple((f"c{n}", "mcp_workshop_count", '{"what": "x"}') for n in range(400))
    first.script += [Says(calls=flood)]
    session = run()
    assert (session.status, session.error_code) == (Session.Status.FAILED, "calls_exhausted")
    assert not session.steps.filter(kind=Step.Kind.CALL).exists()
    assert effects.read_text() == ""


def test_retries_are_limited_by_the_turns_too(helper, endpoint, first, second, run):
    Agent.objects.filter(pk=helper.pk).update(max_turns=2)
    ModelEndpoint.objects.filter(pk=endpoint.pk).update(retries=10)
    first.speaks = lambda request: Says("")
    assert run().error_code == "turns_exhausted"
    assert len(first.requests) == 2


def test_a_delay_ends_when_the_session_is_canceled(acme, helper, endpoint, first, runner):
    first.script += [Refuses(429, {}, {"Retry-After": "60"})]
    administrator = factories.build_administrator(acme)
    session = sessions.start_session(administrator, helper, "hello")
    task = get_runtime().call(runner.claim_and_run, session.pk)
    eventually(lambda: list_notices(session, "model_retry"))
    assert sessions.cancel_session(administrator, session)
    get_runtime().call(asyncio.wait, [task], timeout=10)
    session.refresh_from_db()
    assert session.status == Session.Status.CANCELLED


def test_another_worker_continues_after_the_previous_failures(
    acme, helper, endpoint, first, second, runner, run
):
    first.script += [BROKEN, BROKEN]
    waiting = Waits(then=Says("instead"))
    second.script += [waiting, Says("instead")]
    administrator = factories.build_administrator(acme)
    session = sessions.start_session(administrator, helper, "hello")
    get_runtime().call(runner.claim_and_run, session.pk)
    eventually(second.request_received.is_set)
    get_runtime().call(runner.drain)
    other_runner = SessionRunner()

    async def continue_session():
        task = await other_runner.claim_and_run(session.pk)
        await asyncio.wait_for(task, 30)

    get_runtime().call(continue_session)
    get_runtime().call(other_runner.drain)
    session.refresh_from_db()
    assert session.status == Session.Status.DONE
    assert (len(first.requests), len(second.requests)) == (2, 2)
