"""Going on: how a session's call is taken further whose server asked something, or made a task.

Between two parts of a call everything is in its `Exchange`, so a session may rest there without a
worker. A dead holder's call that stood there goes on; so does a look at a task, which does nothing.
"""

import logging
from datetime import timedelta
from uuid import UUID, uuid4

from django.utils import timezone

from agents import calls, exchanges
from agents.models import Exchange, Session, Step
from agents.sessions import rows
from agents.sessions.acting import principal_of
from agents.sessions.host import SessionHost
from agents.sessions.runners import Hold
from bonobot.ledger.models import AuditRow
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from mcp_servers.models import Server

logger = logging.getLogger(__name__)

# A session that only waits for a task is looked at by the sweep, which comes this often.
LEAST_REST = timedelta(seconds=10)


async def exchange_of(step: Step) -> Exchange | None:
    """Return by what a call goes on; None for one that was never answered."""
    if (known := step.payload.get("exchange")) is None:
        return None
    return await runtime().orm(exchanges.open_one, known)


async def next_part(host: SessionHost, step: Step, exchange: Exchange) -> bool:
    """Make a call ready for its next part; False where a person, or a task's time, is waited for.

    Raises a `Problem` where the call can't go on.
    """
    if exchange.call_id != step.call_id:
        return True  # the part that is to be made already
    if exchange.next_at is not None and exchange.next_at > timezone.now():
        return False
    if not await host.gather(step, exchange):
        return False
    await runtime().orm(rows.renew, host.hold, step)
    return True


async def rests(hold: Hold, step: Step, outcome: calls.Outcome, before: Exchange | None) -> bool:
    """Write that a part of a call is over; tell whether a task is left alone for a while."""
    orm = runtime().orm
    assert outcome.exchange_id is not None  # noqa: S101 - it isn't over
    await orm(rows.keep_exchange, hold, step, outcome.exchange_id, outcome.cost_microusd)
    exchange = await orm(exchanges.open_one, outcome.exchange_id)
    if exchange is None or before is None or exchange.kind != Exchange.Kind.TASK:
        return False
    if exchange.requests or await orm(_dies_with_us, exchange):
        return False
    pause = max(LEAST_REST, timedelta(milliseconds=exchange.poll_ms))
    await orm(exchanges.look_again, exchange, timezone.now() + pause)
    return True


async def goes_on(hold: Hold, step: Step) -> bool:
    """Tell whether a call that a dead holder left stood between two parts, and make it ready."""
    orm = runtime().orm
    exchange = await orm(_left_at, step)
    if exchange is None:
        return False
    if exchange.call_id == step.call_id:
        await orm(rows.keep_exchange, hold, step, exchange.pk, 0)
        return True
    if exchange.kind == Exchange.Kind.TASK and await orm(_was_admitted, step):
        await orm(rows.renew, hold, step)
        return True
    return False


async def given_up(hold: Hold, step: Step) -> bool:
    """Close a call that stood between two parts as its run ends; a task's server is told."""
    exchange = await runtime().orm(_left_at, step)
    if exchange is None:
        return False
    await runtime().orm(exchanges.close, exchange.pk)
    if exchange.kind == Exchange.Kind.TASK:
        await _cancel_task(hold, exchange)
        return True
    return bool(exchange.call_id == step.call_id)


async def _cancel_task(hold: Hold, exchange: Exchange) -> None:
    session = await runtime().orm(_session, hold.session_id)
    host = SessionHost(hold, session)
    request = calls.Request(
        principal=principal_of(session),
        tool=exchange.own_name,
        arguments={},
        via="session",
        holder=f"session:{session.pk}",
        agent_id=exchange.agent_id,
        server_id=exchange.server_id,
        session_id=session.pk,
        call_id=uuid4(),
        host=host,
    )
    try:
        await calls.give_up(request, exchange.task_id)
    except Problem as problem:
        logger.warning("task %s could not be cancelled: %s", exchange.task_id, problem)


def _session(session_id: UUID) -> Session:
    return Session.objects.get(pk=session_id)


def _left_at(step: Step) -> Exchange | None:
    known = step.payload.get("exchange")
    return exchanges.open_one(known, step.call_id) if known or step.call_id else None


def _was_admitted(step: Step) -> bool:
    return step.call_id is not None and AuditRow.objects.filter(pk=step.call_id).exists()


def _dies_with_us(exchange: Exchange) -> bool:
    """Tell whether the task lives in a child process, which ends when its session rests."""
    return Server.objects.filter(
        pk=exchange.server_id, transport_type=Server.Transport.STDIO
    ).exists()
