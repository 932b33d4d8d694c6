"""Run one action on many servers in a worker.

Each item is claimed by a conditional update and settled once, so a task message may arrive twice or
never, and another worker resumes a job whose worker died. Actions run as the person who started the
job, with that person's current permissions.
"""

import logging
from asyncio import TaskGroup, sleep
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from bonobot.accounts.models import User
from bonobot.accounts.principals import Principal, build_user_principal
from bonobot.accounts.roles import Action
from bonobot.core.celery_tasks import enqueue_task_on_commit
from bonobot.core.concurrency_limits import get_concurrency_limit
from bonobot.core.problems import Conflict, InternalError, NotFound, Problem
from bonobot.core.runtime import get_runtime
from mcp_servers import services
from mcp_servers.definition_reviews import approve
from mcp_servers.discovery import discover
from mcp_servers.models import Check, Round, Server, Stop

logger = logging.getLogger(__name__)

CARRY_OUT = "mcp_servers.tasks.carry_out_round"
# The worker of a job renews its lease; another worker takes over a job whose lease expired.
LEASE = timedelta(seconds=45)
# A new job that no worker claims within this time counts as abandoned.
TAKEN_UP_WITHIN = timedelta(seconds=10)
NEEDS = {Round.Kind.APPROVE: Action.APPROVE_DEFINITIONS}
CHECKS = {Round.Kind.TEST: Check.Kind.TEST, Round.Kind.REFRESH: Check.Kind.DISCOVERY}
OPEN = (Stop.State.WAITING, Stop.State.RUNNING)


def begin(
    principal: Principal,
    kind: str,
    servers: Sequence[Server],
    said: Mapping[UUID, Mapping[str, Any]] | None = None,
) -> Round:
    """Create a bulk job and enqueue it; `confirmed` is what was confirmed for each server.

    Raises `Forbidden` without the permission for this action.
    """
    wanted = Round.Kind(kind)
    principal.require(NEEDS.get(wanted, Action.MANAGE_SERVERS))
    known = said or {}
    with transaction.atomic():
        made: Round = Round.objects.create(
            organization_id=principal.organization_id,
            kind=wanted,
            asked_by=_find_person(principal),
        )
        Stop.objects.bulk_create(
            Stop(round=made, server_id=one.pk, server_name=one.name, said=known.get(one.pk, {}))
            for one in servers
        )
        enqueue_task_on_commit(CARRY_OUT, str(made.pk))
    return made


def _find_person(principal: Principal) -> User | None:
    """Return the principal's user, or None."""
    mine = principal.kind == "user"
    return User.objects.filter(pk=principal.id).first() if mine else None


def count_items(found: QuerySet[Round]) -> list[tuple[Round, dict[str, int]]]:
    """Return jobs with the number of items, in `total` and by state (one query)."""
    states = {
        f"in_{state}": Count("stops", filter=Q(stops__state=state)) for state in Stop.State.values
    }
    return [
        (one, {name.removeprefix("in_"): getattr(one, name) for name in ("in_total", *states)})
        for one in found.annotate(in_total=Count("stops"), **states)
    ]


def list_abandoned_jobs() -> list[UUID]:
    """Return jobs without a worker: their message was lost or their worker died."""
    now = timezone.now()
    waits = Q(held_until=None, created_at__lt=now - TAKEN_UP_WITHIN) | Q(held_until__lt=now)
    return list(Round.objects.filter(waits, finished_at=None).values_list("pk", flat=True))


def is_stalled(going: Round) -> bool:
    """Return whether an unfinished job has no worker."""
    due = going.held_until or going.created_at + TAKEN_UP_WITHIN
    return going.finished_at is None and due < timezone.now()


def begin_again(principal: Principal, ended: Round) -> Round:
    """Start a job for the failed items of another job, with what was confirmed there.

    Raises `Conflict` (`nothing_failed`) if no such server exists any more, `Forbidden`.
    """
    said = {stop.server_id: stop.said for stop in ended.stops.filter(state=Stop.State.FAILED)}
    mine = Server.objects.for_organization(principal.organization_id)
    servers = list(mine.filter(pk__in=said).order_by("name"))
    if not servers:
        raise Conflict(
            "Nothing failed here that is still there.",
            code="nothing_failed",
            remedy="Choose servers in the list.",
        )
    return begin(principal, ended.kind, servers, said)


async def carry_out(round_id: UUID) -> None:
    """Run a job to its end, unless another worker does."""
    aside = get_runtime().aside
    if (going := await aside(_claim, round_id)) is None:
        return
    waiting = await aside(list, going.stops.filter(state=Stop.State.WAITING))
    async with TaskGroup() as held:
        holding = held.create_task(_renew_lease_periodically(going))
        async with TaskGroup() as group:
            for stop in waiting:
                group.create_task(_process_item(going, stop))
        holding.cancel()
    await aside(_finish, going)


async def _renew_lease_periodically(going: Round) -> None:
    """Renew the lease until canceled."""
    while True:
        await sleep(LEASE.total_seconds() / 3)
        await get_runtime().aside(_renew_lease, going.pk)


def _renew_lease(round_id: UUID) -> None:
    Round.objects.filter(pk=round_id).update(held_until=timezone.now() + LEASE)


def _claim(round_id: UUID) -> Round | None:
    now = timezone.now()
    free = Q(held_until=None) | Q(held_until__lt=now)
    mine = Round.objects.filter(free, pk=round_id, finished_at=None)
    if not mine.update(held_until=now + LEASE):
        return None
    # Left by a worker that died; the actions are idempotent.
    Stop.objects.filter(round_id=round_id, state=Stop.State.RUNNING).update(
        state=Stop.State.WAITING
    )
    found: Round = Round.objects.select_related("asked_by", "organization").get(pk=round_id)
    return found


async def _process_item(going: Round, stop: Stop) -> None:
    """Process one item; a failure is stored in it and does not affect others."""
    aside = get_runtime().aside
    async with get_concurrency_limit("discovery"):
        if not await aside(_start, stop):
            return
        try:
            await _perform_action(going, stop)
        except Problem as problem:
            told = f"{problem} {problem.remedy}".strip()
            await aside(_settle, stop, Stop.State.FAILED, problem.code, told)
        except Exception:
            logger.exception("a stop of round %s broke off", going.pk)
            code = InternalError.code
            await aside(_settle, stop, Stop.State.FAILED, code, "A fault of ours; it is logged.")
        else:
            await aside(_settle, stop, Stop.State.DONE)


async def _perform_action(going: Round, stop: Stop) -> None:
    aside = get_runtime().aside
    principal, server = await aside(_load_principal_and_server, going, stop)
    if going.kind in CHECKS:
        principal.require(Action.MANAGE_SERVERS)
        kind = CHECKS[Round.Kind(going.kind)]
        await discover(server.pk, actor=principal.actor, kind=kind)
    elif going.kind == Round.Kind.APPROVE:
        seen = {UUID(pk): digest for pk, digest in stop.said.items()}
        await aside(_approve, principal, server, seen)
    elif going.kind == Round.Kind.REMOVE:
        await aside(services.remove, principal, server)
    else:
        on = going.kind == Round.Kind.ENABLE
        await aside(services.set_server_enabled, principal, server, enabled=on)


def _load_principal_and_server(going: Round, stop: Stop) -> tuple[Principal, Server]:
    if going.asked_by is None or not going.asked_by.is_active:
        raise NotFound("Who asked for this is no longer here.", remedy="Begin it again.")
    principal = build_user_principal(going.asked_by, going.organization)
    server: Server = Server.objects.get_or_404(going.organization_id, pk=stop.server_id)
    return principal, server


def _approve(principal: Principal, server: Server, seen: Mapping[UUID, str]) -> None:
    """Approve exactly the definitions that were shown at confirmation."""
    if seen:
        approve(principal, server, dict(seen))


def _start(stop: Stop) -> bool:
    waiting = Stop.objects.filter(pk=stop.pk, state=Stop.State.WAITING)
    return bool(waiting.update(state=Stop.State.RUNNING))


def _settle(stop: Stop, state: str, code: str = "", detail: str = "") -> None:
    running = Stop.objects.filter(pk=stop.pk, state=Stop.State.RUNNING)
    running.update(state=state, code=code[:64], detail=detail[:2_000])


def _finish(going: Round) -> None:
    if not going.stops.filter(state__in=OPEN).exists():
        Round.objects.filter(pk=going.pk).update(finished_at=timezone.now())
