"""What unsettled steps show for a moment: text as a model writes it, how far a call has come.

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
from agents.sessions.nudges import place
from agents.sessions.runners import Hold
from bonobot.lib.bus import Texts, bus
from bonobot.lib.known_secrets import without_secrets
from bonobot.lib.row_locks import lock
from bonobot.lib.runtime import Runtime, runtime
from bonobot.lib.untrusted import storable

logger = logging.getLogger(__name__)

SHOWN_EVERY_S = 0.1
# Each time is one transaction for all sessions of the process.
WRITTEN_EVERY_S = 0.5
# Characters that a process tells in a second: where there is more, it is told more rarely.
PACE = 4_000_000
# Of what a server says about its progress.
SAID_LENGTH = 300


@dataclass(frozen=True)
class Moment:
    """What a step shows now; `base` is what its row says beside it."""

    step: int
    session_id: UUID
    organization_id: UUID
    fence: int
    seq: int
    base: Mapping[str, Any]
    shown: Mapping[str, Any]


class Live:
    """This process's steps that show something, told together."""

    def __init__(self) -> None:
        self._due: dict[int, Moment] = {}
        self._telling: asyncio.Task[None] | None = None

    def show(self, moment: Moment) -> None:
        """Have watchers see what a step shows, soon. On the loop only."""
        self._due[moment.step] = moment
        if self._telling is None or self._telling.done():
            self._telling = runtime().begin(self._tell(), name="live steps")

    async def _tell(self) -> None:
        while self._due:
            moments, self._due = list(self._due.values()), {}
            if any("progress" in one.shown for one in moments):
                moments = await runtime().orm(masked, moments)
            pause = SHOWN_EVERY_S
            if not await bus().show(map(_texts, moments)):
                pause = WRITTEN_EVERY_S
                try:
                    await runtime().orm(write, moments)
                except DatabaseFault as fault:
                    logger.warning("what %s steps show was not written: %s", len(moments), fault)
            characters = sum(len(one.shown.get("text", "")) for one in moments)
            await asyncio.sleep(max(pause, characters / PACE))


def masked(moments: list[Moment]) -> list[Moment]:
    """Return moments whose progress says none of the organization's secrets, cut (queries)."""
    return [replace(one, shown=_masked(one)) for one in moments]


def _masked(moment: Moment) -> Mapping[str, Any]:
    progress = moment.shown.get("progress")
    if not progress or not progress["message"]:
        return moment.shown
    said = without_secrets(progress["message"], moment.organization_id)[:SAID_LENGTH]
    return {**moment.shown, "progress": {**progress, "message": said}}


def write(moments: list[Moment]) -> None:
    """Write what steps show into those that aren't settled yet (one transaction)."""
    with transaction.atomic():
        # As the sessions' holders do, who settle steps: the session's row first.
        lock(Session.objects.filter(pk__in={one.session_id for one in moments}))
        seen = set()
        for one in moments:
            mine = Step.objects.filter(pk=one.step, fence=one.fence, state=Step.State.INTENT)
            if mine.update(payload=storable({**one.base, **one.shown})):
                seen.add(one.session_id)
        # Watchers look at this before they look at the steps.
        Session.objects.filter(pk__in=seen).update(updated_at=timezone.now())


async def shown_now(session_id: UUID) -> dict[int, dict[str, Any]]:
    """Return what the bus has of a session's steps, by `seq`."""
    if not settings.REDIS_URL:
        return {}
    return {
        int(seq): json.loads(text) for seq, text in (await bus().shown(place(session_id))).items()
    }


def _texts(moment: Moment) -> Texts:
    return Texts(place(moment.session_id), {str(moment.seq): json.dumps(storable(moment.shown))})


class Writing:
    """Shows what a model has written so far of a turn; called with each piece."""

    def __init__(self, hold: Hold, step: Step, organization_id: UUID) -> None:
        self._hold, self._step, self._organization_id = hold, step, organization_id
        self.text = ""

    async def __call__(self, piece: str) -> None:
        """Add a piece."""
        self.text += piece
        live().show(_moment(self._hold, self._step, self._organization_id, {"text": self.text}))


async def show_progress(
    hold: Hold,
    step: Step,
    organization_id: UUID,
    done: float,
    total: float | None,
    message: str | None,
) -> None:
    """Show how far a server says that a call has come (`notifications/progress`)."""
    progress = {"done": done, "total": total, "message": message or ""}
    live().show(_moment(hold, step, organization_id, {"progress": progress}))


def _moment(hold: Hold, step: Step, organization_id: UUID, shown: Mapping[str, Any]) -> Moment:
    return Moment(
        step=step.pk,
        session_id=hold.session_id,
        organization_id=organization_id,
        fence=hold.fence,
        seq=step.seq,
        base=step.payload,
        shown=shown,
    )


_lock = threading.Lock()
_by_runtime: WeakKeyDictionary[Runtime, Live] = WeakKeyDictionary()


def live() -> Live:
    """Return what this process's runtime shows."""
    with _lock:
        return _by_runtime.setdefault(runtime(), Live())
