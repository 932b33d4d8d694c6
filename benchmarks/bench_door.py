"""`make bench`: what a governed call costs, printed and never judged by the clock."""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import pytest

from agents.calls import Outcome, Request, call
from agents.models import Agent
from bonobot.ledger.verify import verify
from bonobot.lib.runtime import runtime
from bonobot.tenancy.models import Organization
from tests.agents import casting

ALONE = 200
TOGETHER = 1_000
AT_ONCE = 64

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def acme() -> Organization:
    return casting.organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return casting.agent(acme, calls_per_minute=1_000_000)


def test_a_stdio_tool_through_the_door(acme: Organization, helper: Agent) -> None:
    casting.ready(acme, casting.stdio_server(acme), helper)
    arguments = {"timezone": "Asia/Tokyo"}
    one = caller(acme, helper, "mcp_time_get_current_time", arguments)
    measure("stdio tool", one)
    assert verify(acme.pk).ok


def caller(
    acme: Organization, helper: Agent, tool: str, arguments: dict[str, str]
) -> Callable[[], Awaitable[Outcome]]:
    principal = casting.administrator(acme)

    def one() -> Awaitable[Outcome]:
        request = Request(
            principal=principal,
            tool=tool,
            arguments=dict(arguments),
            via="bench",
            holder="bench",
            agent_id=helper.pk,
        )
        return call(request)

    return one


def measure(title: str, one: Callable[[], Awaitable[Outcome]]) -> None:
    alone = sorted(runtime().call(one_by_one, one))
    began = time.perf_counter()
    runtime().call(side_by_side, one)
    rate = TOGETHER / (time.perf_counter() - began)
    p50, p95 = statistics.median(alone), alone[int(len(alone) * 0.95)]
    sys.stdout.write(
        f"\n{title}: alone {p50:.1f} ms (p95 {p95:.1f} ms), {AT_ONCE} at once {rate:,.0f} calls/s\n"
    )


async def one_by_one(one: Callable[[], Awaitable[Outcome]]) -> list[float]:
    took = []
    for _ in range(ALONE):
        began = time.perf_counter()
        outcome = await one()
        took.append((time.perf_counter() - began) * 1000)
        assert outcome.outcome == "ok", outcome.text
    return took


async def side_by_side(one: Callable[[], Awaitable[Outcome]]) -> None:
    left = iter(range(TOGETHER))

    async def worker() -> None:
        for _ in left:
            assert (await one()).outcome == "ok"

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())
