"""Publish text and progress of unsettled steps.

The full output so far is published at most every `PUBLISH_INTERVAL_S`: over the bus or, without
Redis, in the steps' rows, in one transaction per process. Watchers may miss any of it; the settled
step has the final output.
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
# Each write is one transaction for all sessions of the process.
WRITTEN_EVERY_S = 0.5
# Above this rate a process publishes less often.
PACE = 4_000_000
# Maximum length of a server's progress message, in characters.
SAID_LENGTH = 300


@dataclass(frozen=True)
class PartialOutput:
    """A step's current partial output; `saved_payload` is the payload in its row."""

    step: int
    session_id: UUID
    organization_id: UUID
    fence: int
    seq: int
    base: Mapping[str, Any]
    shown: Mapping[str, Any]


class PartialOutputPublisher:
    """Publishes the partial outputs of this process in batches."""

    def __init__(self) -> None:
        self._due: dict[int, PartialOutput] = {}
        self._telling: asyncio.Task[None] | None = None

    def show(self, moment: PartialOutput) -> None:
        """Schedule an output for publication. Call on the event loop only."""
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
    """Return the outputs with secrets masked in progress messages, truncated (queries)."""
    return [replace(one, shown=_mask_output(one)) for one in moments]


def _mask_output(moment: PartialOutput) -> Mapping[str, Any]:
    progress = moment.shown.get("progress")
    if not progress or not progress["message"]:
        return moment.shown
    said = mask_organization_secrets(progress["message"], moment.organization_id)[:SAID_LENGTH]
    return {**moment.shown, "progress": {**progress, "message": said}}


def write(moments: list[PartialOutput]) -> None:
    """Write outputs into the rows of steps that are still unsettled (one transaction)."""
    with transaction.atomic():
        # Lock the session rows first, in the same order as runners that settle steps.
        lock(Session.objects.filter(pk__in={one.session_id for one in moments}))
        seen = set()
        for one in moments:
            mine = Step.objects.filter(pk=one.step, fence=one.fence, state=Step.State.INTENT)
            if mine.update(payload=make_storable({**one.base, **one.shown})):
                seen.add(one.session_id)
        # Watchers check this column before they load steps.
        Session.objects.filter(pk__in=seen).update(updated_at=timezone.now())


async def fetch_partial_outputs(session_id: UUID) -> dict[int, dict[str, Any]]:
    """Return the partial outputs of a session's steps from the bus, by `seq`."""
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
    """Publishes the text of a model turn so far; called with each piece."""

    def __init__(self, hold: SessionLease, step: Step, organization_id: UUID) -> None:
        self._hold, self._step, self._organization_id = hold, step, organization_id
        self.text = ""

    async def __call__(self, piece: str) -> None:
        """Add a piece and publish the text."""
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
    """Publish a call's progress (`notifications/progress`)."""
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
    """Return the output publisher of this process's runtime."""
    with _lock:
        return _by_runtime.setdefault(get_runtime(), PartialOutputPublisher())
