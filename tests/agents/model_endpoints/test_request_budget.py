"""What a model turn may take of the budgets: never more than is left, and no longer an answer."""

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
from bonobot.ledger.budgets import BudgetBalance, parse_unit
from bonobot.ledger.models import BudgetCell
from bonobot.ledger.queries import load_organization_balances
from bonobot.ledger.refusals import BudgetExhausted
from bonobot.ledger.types import BudgetReservation
from tests import factories
from tests.agents.llm.openai_server import Says

SESSIONS = 50
# The suite runs it twice; `TEST_BUDGET_RUNS=20` is the whole (docs/limits.md tells the figures).
RUNS = int(os.environ.get("TEST_BUDGET_RUNS", "2"))
PRICES = {"input_price": 2_000_000, "output_price": 10_000_000}


@pytest.fixture
def thinker(acme, helper, fake):
    """The agent, thinking at the fake server."""
    spec = ModelEndpointSpec(
        name="Fake", base_url=fake.url, model="house-model", allow_private=True, **PRICES
    )
    helper.model_endpoint = save_endpoint(factories.build_administrator(acme), spec)
    helper.save()
    return helper


@pytest.fixture
def run(acme, runner):
    """Run so many sessions of an agent at once; return them when they rest."""

    async def all_of(ids):
        tasks = [await runner.claim_and_run(one) for one in ids]
        await asyncio.wait([task for task in tasks if task is not None], timeout=120)

    def go(agent, count=1, text="hello"):
        boss = factories.build_administrator(acme)
        ids = [sessions.start_session(boss, agent, text).pk for _ in range(count)]
        get_runtime().call(all_of, ids)
        return list(Session.objects.filter(pk__in=ids))

    return go


def budget(agent, unit, limit):
    return Budget.objects.create(
        organization=agent.organization, agent=agent, unit=unit, period="total", limit=limit
    )


def test_the_answer_is_limited_by_the_remaining_tokens(fake, thinker, run):
    budget(thinker, "tokens", 1_000)
    fake.script += [Says(text="hi")]
    (session,) = run(thinker)
    assert session.status == Session.Status.DONE
    (sent,) = fake.requests
    row = session.steps.get(kind=Step.Kind.MODEL)
    assert sent["max_tokens"] == 1_000 - row.payload["estimated_input_tokens"]


def test_the_answer_is_limited_by_the_remaining_money(fake, thinker, run):
    budget(thinker, "microusd", 10_000)
    fake.script += [Says(text="hi")]
    (session,) = run(thinker)
    (sent,) = fake.requests
    estimate = session.steps.get(kind=Step.Kind.MODEL).payload["estimated_input_tokens"]
    assert sent["max_tokens"] == (10_000 - 2 * estimate) // 10


def test_without_a_budget_the_answer_isnt_limited(fake, thinker, run):
    fake.script += [Says(text="hi")]
    run(thinker)
    assert "max_tokens" not in fake.requests[0]


def test_an_endpoint_limits_the_length_of_answers(fake, thinker, run):
    ModelEndpoint.objects.filter(pk=thinker.model_endpoint_id).update(max_tokens=77)
    fake.script += [Says(text="hi"), Says(text="ho")]
    run(thinker)
    budget(thinker, "tokens", 100_000)
    run(thinker)
    assert [sent["max_tokens"] for sent in fake.requests] == [77, 77]


def test_a_large_budget_doesnt_limit_the_answer(fake, thinker, run):
    budget(thinker, "tokens", 100_000)
    fake.script += [Says(text="hi")]
    run(thinker)
    assert fake.requests[0]["max_tokens"] == DEFAULT_ANSWER_TOKENS


def test_a_budget_too_small_for_a_useful_answer_denies_the_request(fake, thinker, run):
    budget(thinker, "tokens", MIN_ANSWER_TOKENS)
    (session,) = run(thinker)
    assert (session.status, session.error_code) == (Session.Status.FAILED, "budget_exhausted")
    assert fake.requests == []


def test_a_truncated_answer_is_reported(fake, thinker, run):
    budget(thinker, "tokens", 1_000)
    fake.script += [Says(text="half an ans", finish="length")]
    (session,) = run(thinker)
    notice = session.steps.get(kind=Step.Kind.NOTICE, payload__code="answer_cut")
    assert f"{fake.requests[0]['max_tokens']:,}" in notice.payload["text"]


def test_an_estimate_is_corrected_by_the_last_turn(fake, thinker, workshop, run):
    budget(thinker, "tokens", 1_000_000)
    usage = {"prompt_tokens": 30_000, "completion_tokens": 7}
    asked = (("c1", "mcp_workshop_echo", '{"text": "a"}'),)
    fake.script += [Says(calls=asked, usage=usage), Says(text="done")]
    (session,) = run(thinker)
    first, second = session.steps.filter(kind=Step.Kind.MODEL)
    assert first.payload["estimated_input_tokens"] < 30_000
    assert second.payload["estimated_input_tokens"] >= 30_000


def test_the_offline_model_respects_its_token_limit(helper, run):
    budget(helper, "tokens", 100_000)
    ModelEndpoint.objects.filter(pk=helper.model_endpoint_id).update(max_tokens=5)
    (session,) = run(helper)
    step = session.steps.get(kind=Step.Kind.MODEL)
    assert (step.payload["finish"], session.output_tokens <= 5) == ("length", True)


def test_parallel_sessions_never_overspend_or_lock_the_database(acme, fake, thinker, run, caplog):
    for number in range(RUNS):
        chance = random.Random(number)  # noqa: S311  # it must be the same again
        limits = {
            "tokens": chance.randint(20_000, 60_000),
            "microusd": chance.randint(200_000, 600_000),
        }
        lines = [BudgetLine(unit, "total", limit) for unit, limit in limits.items()]
        set_budgets(factories.build_administrator(acme), thinker, lines)
        BudgetCell.objects.all().delete()
        fake.requests.clear()
        fake.speaks = spender(chance)
        sessions = run(thinker, SESSIONS)
        ended = {session.error_code for session in sessions}
        assert ended <= {"", "budget_exhausted"}, f"run {number} ended with {ended}"
        assert "" in ended, f"run {number}: nobody was let in"
        for key, cell in load_organization_balances(acme.pk).items():
            limit = limits[parse_unit(key)]
            assert cell.reserved == 0
            assert cell.spent <= limit, f"run {number} overspent {key}: {cell.spent} of {limit}"
    assert [one.getMessage() for one in caplog.records if "locked" in one.getMessage()] == []


def spender(chance):
    """Return who uses all of a short input, and an answer as long as chance has it."""

    def speaks(body):
        used = {"prompt_tokens": 20, "completion_tokens": chance.randint(1, body["max_tokens"])}
        return Says(text="ok", usage=used)

    return speaks


def exhausted(unit, limit, cell):
    key = f"budget:{uuid4()}:agent:{uuid4()}:{unit}:total:all"
    return BudgetExhausted(BudgetReservation(key, limit, 1), cell)


@given(
    limit=st.integers(0, 10**9),
    spent=st.integers(0, 10**9),
    asked=st.integers(0, 50_000),
    answer=st.integers(1, 200_000),
    prices=st.tuples(st.integers(0, 10**8), st.integers(0, 10**8)),
    unit=st.sampled_from(["tokens", "microusd"]),
)
def test_the_limit_is_the_longest_affordable_answer(limit, spent, asked, answer, prices, unit):
    endpoint = ModelEndpointConfig(
        "openai", model="m", input_price=prices[0], output_price=prices[1]
    )
    found = compute_fitting_tokens(
        endpoint, TokenUsage(asked, answer), exhausted(unit, limit, BudgetBalance(spent))
    )
    left = max(limit - spent, 0)

    def takes(tokens):
        return (
            asked + tokens
            if unit == "tokens"
            else calculate_price(endpoint, TokenUsage(asked, tokens))
        )

    assert 0 <= found < answer
    if found:
        assert takes(found) <= left
    if found + 1 < answer:
        assert takes(found + 1) > left


def test_a_time_budget_doesnt_limit_the_length_of_an_answer():
    endpoint = ModelEndpointConfig("openai", model="m", **PRICES)
    assert (
        compute_fitting_tokens(
            endpoint, TokenUsage(1, 10), exhausted("milliseconds", 10, BudgetBalance())
        )
        == 0
    )


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6))
def test_an_estimate_is_raised_by_the_last_underestimate(estimate, guessed, used):
    last = {"estimated_input_tokens": guessed, "usage": {"input_tokens": used}}
    found = correct_estimate(estimate, last)
    assert found >= estimate
    assert found * guessed >= estimate * used
    assert correct_estimate(estimate, None) == estimate
