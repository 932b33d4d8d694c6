"""Text and progress while they come.

It is told as a whole, as often as `SHOWN_EVERY_S` at most: over the bus, else (no Redis, or it is
away) in the steps' rows, all of a process in one transaction. Watchers may miss any of it; what
counts is in the step when it is settled.
"""

import asyncio
import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.conf import settings
from django.db import Error as DatabaseFault
from django.db import transaction
from django.utils import timezone

from agents.models import Session, Step
from agents.session_wakeups import build_bus_topic
from agents.sessions.leases import SessionLease
from bonobot.core.crypto.organization_secrets import mask_organization_secrets
from bonobot.core.db.transactions import lock
from bonobot.core.redis_bus import BusTexts, get_bus
from bonobot.core.runtime import Runtime, get_runtime
from bonobot.core.text.untrusted_text import make_storable

logger = logging.getLogger(__name__)

SHOWN_EVERY_S = 0.1
# Each time is one transaction for all sessions of the process.
WRITTEN_EVERY_S = 0.5
# Characters that a process tells in a second: where there is more, it is told more rarely.
PACE = 4_000_000
# Of what a server says about its progress.
SAID_LENGTH = 300


@dataclass(frozen=True)
class PartialOutput:
    """What a step shows now; `base` is what its row says beside it."""

    step: int
    session_id: UUID
    organization_id: UUID
    fence: int
    seq: int
    base: Mapping[str, Any]
    shown: Mapping[str, Any]


class PartialOutputPublisher:
    """This process's steps that show something, told together."""

    def __init__(self) -> None:
        self._due: dict[int, PartialOutput] = {}
        self._telling: asyncio.Task[None] | None = None

    def show(self, moment: PartialOutput) -> None:
        """Have watchers see what a step shows, soon. On the loop only."""
        self._due[moment.step] = moment
        if self._telling is None or self._telling.done():
            self._telling = get_runtime().begin(self._tell(), name="live steps")

    async def _tell(self) -> None:
        while self._due:
            moments, self._due = list(self._due.values()), {}
            if any("progress" in one.shown for one in moments):
                moments = await get_runtime().orm(mask_outputs, moments)
            pause = SHOWN_EVERY_S
            if not await get_bus().show(map(_build_bus_message, moments)):
                pause = WRITTEN_EVERY_S
                try:
                    await get_runtime().orm(write, moments)
                except DatabaseFault as fault:
                    logger.warning("what %s steps show was not written: %s", len(moments), fault)
            characters = sum(len(one.shown.get("text", "")) for one in moments)
            await asyncio.sleep(max(pause, characters / PACE))


def mask_outputs(moments: list[PartialOutput]) -> list[PartialOutput]:
    """Return moments whose progress says none of the organization's secrets, cut (queries)."""
    return [replace(one, shown=_mask_output(one)) for one in moments]


def _mask_output(moment: PartialOutput) -> Mapping[str, Any]:
    progress = moment.shown.get("progress")
    if not progress or not progress["message"]:
        return moment.shown
    said = mask_organization_secrets(progress["message"], moment.organization_id)[:SAID_LENGTH]
    return {**moment.shown, "progress": {**progress, "message": said}}


def write(moments: list[PartialOutput]) -> None:
    """Write what steps show into those that aren't settled yet (one transaction)."""
    with transaction.atomic():
        # As the sessions' holders do, who settle steps: the session's row first.
        lock(Session.objects.filter(pk__in={one.session_id for one in moments}))
        seen = set()
        for one in moments:
            mine = Step.objects.filter(pk=one.step, fence=one.fence, state=Step.State.INTENT)
            if mine.update(payload=make_storable({**one.base, **one.shown})):
                seen.add(one.session_id)
        # Watchers look at this before they look at the steps.
        Session.objects.filter(pk__in=seen).update(updated_at=timezone.now())


async def fetch_partial_outputs(session_id: UUID) -> dict[int, dict[str, Any]]:
    """Return what the bus has of a session's steps, by `seq`."""
    if not settings.REDIS_URL:
        return {}
    return {
        int(seq): json.loads(text)
        for seq, text in (await get_bus().shown(build_bus_topic(session_id))).items()
    }


def _build_bus_message(moment: PartialOutput) -> BusTexts:
    return BusTexts(
        build_bus_topic(moment.session_id),
        {str(moment.seq): json.dumps(make_storable(moment.shown))},
    )


class ModelTextReporter:
    """Shows what a model has written so far of a turn; called with each piece."""

    def __init__(self, hold: SessionLease, step: Step, organization_id: UUID) -> None:
        self._hold, self._step, self._organization_id = hold, step, organization_id
        self.text = ""

    async def __call__(self, piece: str) -> None:
        """Add a piece."""
        self.text += piece
        get_output_publisher().show(
            _build_partial_output(
                self._hold, self._step, self._organization_id, {"text": self.text}
            )
        )


async def show_progress(
    hold: SessionLease,
    step: Step,
    organization_id: UUID,
    done: float,
    total: float | None,
    message: str | None,
) -> None:
    """Show how far a server says that a call has come (`notifications/progress`)."""
    progress = {"done": done, "total": total, "message": message or ""}
    get_output_publisher().show(
        _build_partial_output(hold, step, organization_id, {"progress": progress})
    )


def _build_partial_output(
    hold: SessionLease, step: Step, organization_id: UUID, shown: Mapping[str, Any]
) -> PartialOutput:
    return PartialOutput(
        step=step.pk,
        session_id=hold.session_id,
        organization_id=organization_id,
        fence=hold.fence,
        seq=step.seq,
        base=step.payload,
        shown=shown,
    )


_lock = threading.Lock()
_by_runtime: WeakKeyDictionary[Runtime, PartialOutputPublisher] = WeakKeyDictionary()


def get_output_publisher() -> PartialOutputPublisher:
    """Return what this process's runtime shows."""
    with _lock:
        return _by_runtime.setdefault(get_runtime(), PartialOutputPublisher())
