"""Calls and sessions that wait for their rate limit or for reserved budget to be released."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from agents.budgets.admission_queue import AdmissionTicket, AdmissionTimeouts, get_admission_queue
from agents.budgets.limits import build_charge
from agents.budgets.services import BudgetLine, set_budgets
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Agent, Session, Step
from agents.sessions.services import start_session
from agents.sessions.worker import SessionRunner
from bonobot.accounts.models import Organization, Token
from bonobot.accounts.principals import Principal, build_token_principal
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core import rate_limiter
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.admission import BudgetExhausted, BudgetReserved
from bonobot.ledger.models import RateCell
from bonobot.ledger.types import Actor, Admission, BudgetReservation, Opening, Settlement
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.models import Server
from tests import factories
from tests.agents.llm.openai_server import FakeOpenAI, Says
from tests.bonobot.ledger.factories import load_organization_balances

pytestmark = pytest.mark.django_db(transaction=True)

ECHO = "mcp_workshop_echo"
# The suite runs a few; `TEST_PARALLEL_SESSIONS=50` is the run that docs/limits.md describes.
SESSIONS = int(os.environ.get("TEST_PARALLEL_SESSIONS", "10"))
ANSWER_TOKENS = 50
LONG_WAIT = AdmissionTimeouts(30, 30)


@pytest.fixture
def administrator(acme: Organization) -> Principal:
    return factories.build_administrator(acme)


@pytest.fixture(autouse=True)
def _closed_writer(transactional_db: None) -> Iterator[None]:
    yield
    get_writer().close()


@pytest.fixture
def run_all(administrator: Principal, runner: SessionRunner) -> Callable[..., list[Session]]:
    """A function that runs sessions of an agent in parallel and returns them when finished."""

    async def run(session_ids: list[Any]) -> None:
        tasks = [await runner.claim_and_run(session_id) for session_id in session_ids]
        await asyncio.wait([task for task in tasks if task is not None], timeout=240)

    def run_sessions(
        agent: Agent, text: str, count: int, principal: Principal = administrator
    ) -> list[Session]:
        ids = [start_session(principal, agent, text).pk for _ in range(count)]
        get_runtime().call(run, ids)
        return list(Session.objects.filter(pk__in=ids))

    return run_sessions


@pytest.fixture
def reserving_agent(helper: Agent, administrator: Principal, fake: FakeOpenAI) -> Agent:
    """The agent with a model that is allowed 4,096 output tokens and returns 50."""
    spec = ModelEndpointSpec(
        name="Fake", base_url=fake.url, model="house-model", allow_private=True, max_tokens=4_096
    )
    helper.model_endpoint = save_endpoint(administrator, spec)
    helper.save()
    usage = {"prompt_tokens": 20, "completion_tokens": ANSWER_TOKENS}
    fake.speaks = lambda body: Says(text="ok", usage=usage)
    return helper


def build_admission(acme: Organization, amount: int, limit: int = 10) -> Admission:
    opening = Opening(
        call_id=uuid4(),
        organization_id=acme.pk,
        action="agent_tool_call",
        event_type="call",
        resource_type="mcp_tool",
        resource_id="x",
        actor=Actor("session", "s", "s"),
        decision="allow",
    )
    return Admission(opening, (BudgetReservation(f"budget:{acme.pk}:x", limit, amount),))


def settle(admission: Admission, spent: int = 0) -> None:
    """Settle an admission like another process would, without waking calls of this process."""
    (reservation,) = admission.reservations
    get_writer().settle_call(
        Settlement(
            call_id=admission.opening.call_id,
            organization_id=admission.opening.organization_id,
            outcome="ok",
            duration_ms=1,
            actuals=((reservation.key, reservation.amount, spent),),
        )
    ).result()


async def admit(admission: Admission, timeouts: AdmissionTimeouts = LONG_WAIT) -> None:
    queue = get_admission_queue()
    ticket = AdmissionTicket(timeouts)
    try:
        await queue.admit_call(ticket, admission)
    finally:
        queue.close_ticket(ticket)


async def wait_until_queued(key: str, count: int) -> None:
    while len(get_admission_queue()._waiting.get(key, ())) < count:
        await asyncio.sleep(0)


def test_calls_are_admitted_in_the_order_of_arrival(acme: Organization) -> None:
    """A small call doesn't overtake a large one, although it would fit earlier."""
    first, second = build_admission(acme, 6), build_admission(acme, 4)
    large, small = build_admission(acme, 10), build_admission(acme, 1)
    (reservation,) = first.reservations
    order: list[str] = []

    async def admit_and_settle(name: str, admission: Admission) -> None:
        await admit(admission)
        order.append(name)
        await asyncio.to_thread(settle, admission)
        get_admission_queue().notify_settled(admission.reservations)

    async def run() -> None:
        await admit(first)
        await admit(second)
        tasks = [asyncio.create_task(admit_and_settle("large", large))]
        await wait_until_queued(reservation.key, 1)
        tasks.append(asyncio.create_task(admit_and_settle("small", small)))
        await wait_until_queued(reservation.key, 2)
        for admission in (first, second):
            await asyncio.to_thread(settle, admission)
        await asyncio.gather(*tasks)

    get_runtime().call(run, timeout_s=30)
    assert order == ["large", "small"]


@pytest.mark.parametrize(
    ("spent", "expected"), [(0, BudgetReserved), (5, BudgetReserved), (6, BudgetExhausted)]
)
def test_a_budget_is_exhausted_only_if_the_spent_amount_leaves_too_little(
    acme: Organization, spent: int, expected: type[Problem]
) -> None:
    earlier = build_admission(acme, spent)
    get_writer().admit_call(earlier).result()
    settle(earlier, spent)
    get_writer().admit_call(build_admission(acme, 10 - spent)).result()
    with pytest.raises(Problem) as raised:
        get_runtime().call(admit, build_admission(acme, 5), AdmissionTimeouts(0, 0))
    assert type(raised.value) is expected


def test_a_call_that_is_canceled_leaves_the_queue(acme: Organization) -> None:
    holder, waiting = build_admission(acme, 10), build_admission(acme, 5)
    (reservation,) = holder.reservations

    async def run() -> None:
        await admit(holder)
        task = asyncio.create_task(admit(waiting))
        await wait_until_queued(reservation.key, 1)
        task.cancel()
        await asyncio.wait({task})

    get_runtime().call(run, timeout_s=30)
    assert get_admission_queue()._waiting == {}


def test_parallel_sessions_finish_on_a_budget_that_covers_them(
    acme: Organization,
    administrator: Principal,
    reserving_agent: Agent,
    run_all: Callable[..., list[Session]],
    fake: FakeOpenAI,
) -> None:
    """Each turn reserves 80 times what it uses, so few run at once; no output is shortened."""
    limit = SESSIONS * (20 + ANSWER_TOKENS) + 8_000
    set_budgets(administrator, reserving_agent, [BudgetLine("tokens", "total", limit)])
    sessions = run_all(reserving_agent, "hello", SESSIONS)
    assert [session.error_detail for session in sessions if session.status != "done"] == []
    assert {body["max_tokens"] for body in fake.requests} == {4_096}
    (balance,) = load_organization_balances(acme.pk).values()
    assert (balance.spent, balance.reserved) == (SESSIONS * (20 + ANSWER_TOKENS), 0)


def test_parallel_calls_wait_for_running_time_reserved_by_others(
    acme: Organization,
    administrator: Principal,
    helper: Agent,
    workshop: Server,
    run_all: Callable[..., list[Session]],
) -> None:
    """Each call reserves a minute and uses a fraction of a second."""
    set_budgets(administrator, helper, [BudgetLine("seconds", "total", 290)])
    sessions = run_all(helper, f'/{ECHO} {{"text": "hello"}}', 4)
    steps = Step.objects.filter(session__in=sessions, kind=Step.Kind.CALL)
    assert [step.payload["code"] for step in steps] == [""] * 4
    assert {balance.reserved for balance in load_organization_balances(acme.pk).values()} == {0}


def test_a_session_ends_if_reserved_budget_is_not_released_in_time(
    acme: Organization,
    administrator: Principal,
    reserving_agent: Agent,
    run_all: Callable[..., list[Session]],
    settings: Any,
) -> None:
    settings.BONOBOT_ADMISSION_WAIT_S = 0.2
    set_budgets(administrator, reserving_agent, [BudgetLine("tokens", "total", 10_000)])
    (session,) = run_all(reserving_agent, "hello", 1)
    assert session.status == Session.Status.DONE
    (key,) = load_organization_balances(acme.pk)
    admission = build_admission(acme, 0)
    reservation = BudgetReservation(key, 10_000, 9_900)
    get_writer().admit_call(Admission(admission.opening, (reservation,))).result()
    (session,) = run_all(reserving_agent, "hello", 1)
    assert (session.status, session.error_code) == ("failed", "budget_reserved")


def create_session_token(administrator: Principal, per_minute: int) -> tuple[Token, Principal]:
    token, _ = create_token(
        administrator, name="tests", role=Role.OWNER, calls_per_minute=per_minute
    )
    return token, build_token_principal(token)


def make_three_calls(
    run_all: Callable[..., list[Session]], helper: Agent, principal: Principal
) -> list[str]:
    text = "\n".join(f"/{ECHO} {json.dumps({'text': text})}" for text in "abc")
    (session,) = run_all(helper, text, 1, principal)
    return sorted(step.payload["code"] for step in session.steps.filter(kind=Step.Kind.CALL))


@pytest.mark.parametrize(
    ("default_rate", "token_rate", "codes"),
    [(1, 60, ["", "", ""]), (60, 2, ["", "", "rate_limited"])],
)
def test_a_session_is_limited_by_the_rate_of_the_token_that_started_it(
    administrator: Principal,
    helper: Agent,
    workshop: Server,
    run_all: Callable[..., list[Session]],
    settings: Any,
    default_rate: int,
    token_rate: int,
    codes: list[str],
) -> None:
    helper.calls_per_minute = 600
    helper.save()
    settings.BONOBOT_CALLS_PER_MINUTE = default_rate
    settings.BONOBOT_ADMISSION_WAIT_S = 0
    _, principal = create_session_token(administrator, token_rate)
    assert make_three_calls(run_all, helper, principal) == codes


def test_a_changed_rate_of_the_token_applies_to_the_sessions_next_run(
    administrator: Principal,
    helper: Agent,
    workshop: Server,
    run_all: Callable[..., list[Session]],
    settings: Any,
) -> None:
    settings.BONOBOT_ADMISSION_WAIT_S = 0
    token, principal = create_session_token(administrator, 60)
    Token.objects.filter(pk=token.pk).update(calls_per_minute=2)
    assert make_three_calls(run_all, helper, principal) == ["", "", "rate_limited"]


@pytest.mark.parametrize(
    ("wait_s", "allowed_in_s", "code"), [(30, 2, ""), (0.5, 30, "rate_limited")]
)
def test_a_call_of_a_session_waits_for_its_rate_limit_within_a_bound(
    acme: Organization,
    administrator: Principal,
    helper: Agent,
    workshop: Server,
    run_all: Callable[..., list[Session]],
    settings: Any,
    wait_s: float,
    allowed_in_s: int,
    code: str,
) -> None:
    settings.BONOBOT_ADMISSION_WAIT_S = wait_s
    token, principal = create_session_token(administrator, 60)
    charge = build_charge(acme.pk, "token", token.pk, 60)
    interval = rate_limiter.compute_interval(charge.per_minute)
    now_us = int(timezone.now().timestamp() * 1_000_000)
    RateCell.objects.create(
        pk=charge.key, tat=now_us + interval * (charge.burst - 1) + allowed_in_s * 1_000_000
    )
    (session,) = run_all(helper, f'/{ECHO} {{"text": "hello"}}', 1, principal)
    step = session.steps.get(kind=Step.Kind.CALL)
    assert step.payload["code"] == code


def test_a_caller_without_a_session_gets_the_time_to_wait(
    acme: Organization,
    administrator: Principal,
    helper: Agent,
    workshop: Server,
    call: Callable[..., Any],
) -> None:
    token, principal = create_session_token(administrator, 60)
    charge = build_charge(acme.pk, "token", token.pk, 60)
    now_us = int(timezone.now().timestamp() * 1_000_000)
    RateCell.objects.create(pk=charge.key, tat=now_us + 60_000_000)
    with pytest.raises(Problem) as raised:
        call(ECHO, {"text": "x"}, principal=principal)
    assert raised.value.code == "rate_limited"
    assert raised.value.retry_after


def test_a_caller_without_a_session_waits_briefly_for_a_reserved_budget(
    acme: Organization,
    administrator: Principal,
    helper: Agent,
    workshop: Server,
    call: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agents.calls.admit.CALLER_WAIT_S", 0.1)
    set_budgets(administrator, helper, [BudgetLine("calls", "total", 2)])
    call(ECHO, {"text": "x"})
    (key,) = load_organization_balances(acme.pk)
    admission = build_admission(acme, 0)
    get_writer().admit_call(Admission(admission.opening, (BudgetReservation(key, 2, 1),))).result()
    with pytest.raises(Problem) as raised:
        call(ECHO, {"text": "x"})
    assert (raised.value.code, raised.value.status) == ("budget_reserved", 429)
