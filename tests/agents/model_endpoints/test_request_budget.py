"""Model requests within budgets: the limit of the answer, and no overspending."""

import asyncio
import os
import random
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.budgets.services import BudgetLine, set_budgets
from agents.llm.interface import ModelEndpointConfig, TokenUsage
from agents.llm.pricing import calculate_price
from agents.model_endpoints.request_budget import (
    DEFAULT_ANSWER_TOKENS,
    MIN_ANSWER_TOKENS,
    compute_fitting_tokens,
    correct_estimate,
)
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Budget, ModelEndpoint, Session, Step
from agents.sessions import services as sessions
from bonobot.core.runtime import get_runtime
from bonobot.ledger.admission import BudgetExhausted
from bonobot.ledger.budgets import BudgetBalance, parse_unit
from bonobot.ledger.models import BudgetCell
from bonobot.ledger.types import BudgetReservation
from tests import factories
from tests.agents.llm.openai_server import Says
from tests.bonobot.ledger.factories import load_organization_balances

SESSIONS = 50
# Tests run twice by default; docs/limits.md has the results of `TEST_BUDGET_RUNS=20`.
RUNS = int(os.environ.get("TEST_BUDGET_RUNS", "2"))
PRICES = {"input_price": 2_000_000, "output_price": 10_000_000}


@pytest.fixture
def priced_agent(acme, helper, fake):
    """The agent, with the fake server as its model endpoint."""
    spec = ModelEndpointSpec(
        name="Fake", base_url=fake.url, model="house-model", allow_private=True, **PRICES
    )
    helper.model_endpoint = save_endpoint(factories.build_administrator(acme), spec)
    helper.save()
    return helper


@pytest.fixture
def run(acme, runner):
    """Return a function that runs several sessions of an agent in parallel until they rest."""

    async def run_all(ids):
        tasks = [await runner.claim_and_run(pk) for pk in ids]
        await asyncio.wait([task for task in tasks if task is not None], timeout=120)

    def go(agent, count=1, text="hello"):
        administrator = factories.build_administrator(acme)
        ids = [sessions.start_session(administrator, agent, text).pk for _ in range(count)]
        get_runtime().call(run_all, ids)
        return list(Session.objects.filter(pk__in=ids))

    return go


def create_budget(agent, unit, limit):
    return Budget.objects.create(
        organization=agent.organization, agent=agent, unit=unit, period="total", limit=limit
    )


def test_the_answer_is_limited_by_the_remaining_tokens(fake, priced_agent, run):
    create_budget(priced_agent, "tokens", 1_000)
    fake.script += [Says(text="hi")]
    (session,) = run(priced_agent)
    assert session.status == Session.Status.DONE
    (request,) = fake.requests
    step = session.steps.get(kind=Step.Kind.MODEL)
    assert request["max_tokens"] == 1_000 - step.payload["estimated_input_tokens"]


def test_the_answer_is_limited_by_the_remaining_money(fake, priced_agent, run):
    create_budget(priced_agent, "microusd", 10_000)
    fake.script += [Says(text="hi")]
    (session,) = run(priced_agent)
    (request,) = fake.requests
    estimate = session.steps.get(kind=Step.Kind.MODEL).payload["estimated_input_tokens"]
    assert request["max_tokens"] == (10_000 - 2 * estimate) // 10


def test_without_a_budget_the_answer_isnt_limited(fake, priced_agent, run):
    fake.script += [Says(text="hi")]
    run(priced_agent)
    assert "max_tokens" not in fake.requests[0]


def test_an_endpoint_limits_the_length_of_answers(fake, priced_agent, run):
    ModelEndpoint.objects.filter(pk=priced_agent.model_endpoint_id).update(max_tokens=77)
    fake.script += [Says(text="hi"), Says(text="ho")]
    run(priced_agent)
    create_budget(priced_agent, "tokens", 100_000)
    run(priced_agent)
    assert [request["max_tokens"] for request in fake.requests] == [77, 77]


def test_a_large_budget_doesnt_limit_the_answer(fake, priced_agent, run):
    create_budget(priced_agent, "tokens", 100_000)
    fake.script += [Says(text="hi")]
    run(priced_agent)
    assert fake.requests[0]["max_tokens"] == DEFAULT_ANSWER_TOKENS


def test_a_budget_too_small_for_a_useful_answer_denies_the_request(fake, priced_agent, run):
    create_budget(priced_agent, "tokens", MIN_ANSWER_TOKENS)
    (session,) = run(priced_agent)
    assert (session.status, session.error_code) == (Session.Status.FAILED, "budget_exhausted")
    assert fake.requests == []


def test_a_truncated_answer_is_reported(fake, priced_agent, run):
    create_budget(priced_agent, "tokens", 1_000)
    fake.script += [Says(text="half an ans", finish="length")]
    (session,) = run(priced_agent)
    notice = session.steps.get(kind=Step.Kind.NOTICE, payload__code="answer_cut")
    assert f"{fake.requests[0]['max_tokens']:,}" in notice.payload["text"]


def test_an_estimate_is_corrected_by_the_last_turn(fake, priced_agent, workshop, run):
    create_budget(priced_agent, "tokens", 1_000_000)
    usage = {"prompt_tokens": 30_000, "completion_tokens": 7}
    calls = (("c1", "mcp_workshop_echo", '{"text": "a"}'),)
    fake.script += [Says(calls=calls, usage=usage), Says(text="done")]
    (session,) = run(priced_agent)
    first, second = session.steps.filter(kind=Step.Kind.MODEL)
    assert first.payload["estimated_input_tokens"] < 30_000
    assert second.payload["estimated_input_tokens"] >= 30_000


def test_the_offline_model_respects_its_token_limit(helper, run):
    create_budget(helper, "tokens", 100_000)
    ModelEndpoint.objects.filter(pk=helper.model_endpoint_id).update(max_tokens=5)
    (session,) = run(helper)
    step = session.steps.get(kind=Step.Kind.MODEL)
    assert (step.payload["finish"], session.output_tokens <= 5) == ("length", True)


def test_parallel_sessions_never_overspend_or_lock_the_database(
    acme, fake, priced_agent, run, caplog
):
    for number in range(RUNS):
        generator = random.Random(number)  # noqa: S311  # must be reproducible
        limits = {
            "tokens": generator.randint(20_000, 60_000),
            "microusd": generator.randint(200_000, 600_000),
        }
        lines = [BudgetLine(unit, "total", limit) for unit, limit in limits.items()]
        set_budgets(factories.build_administrator(acme), priced_agent, lines)
        BudgetCell.objects.all().delete()
        fake.requests.clear()
        fake.speaks = build_spender(generator)
        sessions = run(priced_agent, SESSIONS)
        codes = {session.error_code for session in sessions}
        assert codes <= {"", "budget_exhausted"}, f"run {number} ended with {codes}"
        assert "" in codes, f"run {number}: every session was denied"
        for key, cell in load_organization_balances(acme.pk).items():
            limit = limits[parse_unit(key)]
            assert cell.reserved == 0
            assert cell.spent <= limit, f"run {number} overspent {key}: {cell.spent} of {limit}"
    assert [
        record.getMessage() for record in caplog.records if "locked" in record.getMessage()
    ] == []


def build_spender(generator):
    """Return a function that builds replies with a random number of output tokens."""

    def build_reply(body):
        usage = {"prompt_tokens": 20, "completion_tokens": generator.randint(1, body["max_tokens"])}
        return Says(text="ok", usage=usage)

    return build_reply


def build_refusal(unit, limit, cell):
    key = f"budget:{uuid4()}:agent:{uuid4()}:{unit}:total:all"
    return BudgetExhausted(BudgetReservation(key, limit, 1), cell)


@given(
    limit=st.integers(0, 10**9),
    spent=st.integers(0, 10**9),
    input_tokens=st.integers(0, 50_000),
    answer_tokens=st.integers(1, 200_000),
    prices=st.tuples(st.integers(0, 10**8), st.integers(0, 10**8)),
    unit=st.sampled_from(["tokens", "microusd"]),
)
def test_the_limit_is_the_longest_affordable_answer(
    limit, spent, input_tokens, answer_tokens, prices, unit
):
    endpoint = ModelEndpointConfig(
        "openai", model="m", input_price=prices[0], output_price=prices[1]
    )
    limited = compute_fitting_tokens(
        endpoint,
        TokenUsage(input_tokens, answer_tokens),
        build_refusal(unit, limit, BudgetBalance(spent)),
    )
    remaining = max(limit - spent, 0)

    def compute_use(tokens):
        return (
            input_tokens + tokens
            if unit == "tokens"
            else calculate_price(endpoint, TokenUsage(input_tokens, tokens))
        )

    assert 0 <= limited < answer_tokens
    if limited:
        assert compute_use(limited) <= remaining
    if limited + 1 < answer_tokens:
        assert compute_use(limited + 1) > remaining


def test_a_time_budget_doesnt_limit_the_length_of_an_answer():
    endpoint = ModelEndpointConfig("openai", model="m", **PRICES)
    assert (
        compute_fitting_tokens(
            endpoint, TokenUsage(1, 10), build_refusal("milliseconds", 10, BudgetBalance())
        )
        == 0
    )


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6))
def test_an_estimate_is_raised_when_the_last_one_was_too_low(estimate, estimated, used):
    last = {"estimated_input_tokens": estimated, "usage": {"input_tokens": used}}
    corrected = correct_estimate(estimate, last)
    assert corrected >= estimate
    assert corrected * estimated >= estimate * used
    assert correct_estimate(estimate, None) == estimate
