"""Publish text and progress of unsettled steps.

The first text of a model turn is published immediately, or `FIRST_INTERVAL_S` after other output.
After that, the full output so far is published at most every `PUBLISH_INTERVAL_S` over Redis.
Without Redis it is written to the steps' rows every `WRITE_INTERVAL_S`, in one transaction per
process, and announced over the bus. Watchers may miss any of it; the settled step has the final
output.
"""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import Error as DatabaseFault
from django.db import transaction
from django.db.models import BigIntegerField, JSONField
from django.utils import timezone

from agents.models import Session, Step
from agents.sessions.leases import SessionLease
from agents.wakeups import build_session_topic, notify_watchers
from bonobot.core.crypto.organization_secrets import mask_organization_secrets
from bonobot.core.db.prepared_queries import PreparedUpdate, QueryParameter
from bonobot.core.db.transactions import lock_rows
from bonobot.core.message_bus import BusTexts, get_bus
from bonobot.core.runtime import Runtime, get_runtime
from bonobot.core.text.untrusted_text import make_storable

logger = logging.getLogger(__name__)

PUBLISH_INTERVAL_S = 0.1
# Many sessions that begin to answer at the same time share a transaction.
FIRST_INTERVAL_S = 0.02
# Each write is one transaction for all sessions of the process.
WRITE_INTERVAL_S = 0.5
# Above this rate a process publishes less often.
MAX_CHARACTERS_PER_S = 4_000_000
# Maximum length of a server's progress message, in characters.
PROGRESS_MESSAGE_LENGTH = 300
# The texts of a model turn that grow while it streams.
TEXT_FIELDS = ("text", "thinking")
_STEP_PAYLOAD = PreparedUpdate(
    lambda: Step.objects.filter(
        pk=QueryParameter("step", output_field=BigIntegerField()),
        fence=QueryParameter("fence", output_field=BigIntegerField()),
        state=Step.State.INTENT,
    ),
    lambda: {"payload": QueryParameter("payload", output_field=JSONField())},
)
_lock = threading.Lock()


@dataclass(frozen=True)
class PartialOutput:
    """A step's current partial output; `saved_payload` is the payload in its row."""

    step_id: int
    session_id: UUID
    organization_id: UUID
    fence: int
    seq: int
    saved_payload: Mapping[str, Any]
    shown: Mapping[str, Any]


class PartialOutputPublisher:
    """Publishes the partial outputs of this process in batches."""

    def __init__(self) -> None:
        self._pending: dict[int, Callable[[], PartialOutput]] = {}
        # Steps whose first output is pending: it doesn't wait for that of others.
        self._first_ids: set[int] = set()
        self._has_first_output = asyncio.Event()
        self._publishing: asyncio.Task[None] | None = None

    def publish(
        self, step_id: int, build_output: Callable[[], PartialOutput], *, is_first: bool = False
    ) -> None:
        """Schedule a step's output, built when it is published. Call on the event loop only."""
        self._pending[step_id] = build_output
        if is_first:
            self._first_ids.add(step_id)
            self._has_first_output.set()
        if self._publishing is None or self._publishing.done():
            self._publishing = get_runtime().create_task(self._publish_outputs(), name="live steps")

    async def _publish_outputs(self) -> None:
        while self._pending:
            pause_s = await self._publish_steps(list(self._pending))
            next_at = monotonic() + pause_s
            await asyncio.sleep(FIRST_INTERVAL_S)
            while (remaining_s := next_at - monotonic()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(remaining_s):
                        await self._has_first_output.wait()
                if self._first_ids:
                    await self._publish_steps(list(self._first_ids))
                    await asyncio.sleep(FIRST_INTERVAL_S)

    async def _publish_steps(self, step_ids: list[int]) -> float:
        """Publish pending outputs; return how long to wait before the next ones, in seconds."""
        self._first_ids.difference_update(step_ids)
        if not self._first_ids:
            self._has_first_output.clear()
        builders = [self._pending.pop(step_id) for step_id in step_ids]
        outputs = [build_output() for build_output in builders]
        if any("progress" in output.shown for output in outputs):
            outputs = await get_runtime().run_orm(mask_outputs, outputs)
        pause_s = PUBLISH_INTERVAL_S
        if not await get_bus().publish_texts(map(_build_bus_message, outputs)):
            pause_s = WRITE_INTERVAL_S
            try:
                await get_runtime().run_orm(write_outputs, outputs)
            except DatabaseFault as error:
                logger.warning("what %s steps show was not written: %s", len(outputs), error)
        characters = sum(
            len(output.shown.get(name, "")) for output in outputs for name in TEXT_FIELDS
        )
        return max(pause_s, characters / MAX_CHARACTERS_PER_S)


def mask_outputs(outputs: list[PartialOutput]) -> list[PartialOutput]:
    """Return the outputs with secrets masked in progress messages, truncated (queries)."""
    return [replace(output, shown=_mask_output(output)) for output in outputs]


def _mask_output(output: PartialOutput) -> Mapping[str, Any]:
    progress = output.shown.get("progress")
    if not progress or not progress["message"]:
        return output.shown
    masked_message = mask_organization_secrets(progress["message"], output.organization_id)[
        :PROGRESS_MESSAGE_LENGTH
    ]
    return {**output.shown, "progress": {**progress, "message": masked_message}}


def write_outputs(outputs: list[PartialOutput]) -> None:
    """Write outputs into the rows of steps that are still unsettled (one transaction)."""
    with transaction.atomic():
        # Lock the session rows first, in the same order as runners that settle steps.
        lock_rows(Session.objects.filter(pk__in={output.session_id for output in outputs}))
        changed_ids = set()
        for output in outputs:
            payload = make_storable({**output.saved_payload, **output.shown})
            if _STEP_PAYLOAD.execute(step=output.step_id, fence=output.fence, payload=payload):
                changed_ids.add(output.session_id)
        # Watchers check this column before they load steps.
        Session.objects.filter(pk__in=changed_ids).update(updated_at=timezone.now())
        for session_id in changed_ids:
            notify_watchers(session_id)


async def fetch_partial_outputs(session_id: UUID) -> dict[int, dict[str, Any]]:
    """Return the partial outputs of a session's steps from the bus, by `seq`."""
    return {
        int(seq): json.loads(text)
        for seq, text in (await get_bus().fetch_texts(build_session_topic(session_id))).items()
    }


def _build_bus_message(output: PartialOutput) -> BusTexts:
    return BusTexts(
        build_session_topic(output.session_id),
        {str(output.seq): json.dumps(make_storable(output.shown))},
    )


class ModelTextReporter:
    """Publishes the text and thinking of a model turn so far; called with each piece of text."""

    def __init__(self, lease: SessionLease, step: Step, organization_id: UUID) -> None:
        self._lease, self._step, self._organization_id = lease, step, organization_id
        self._pieces: dict[str, list[str]] = {"text": []}

    @property
    def output(self) -> dict[str, str]:
        """The text so far, and the thinking if there is some."""
        output = {name: "".join(pieces) for name, pieces in self._pieces.items()}
        self._pieces = {name: [text] for name, text in output.items()}
        return output

    async def __call__(self, piece: str) -> None:
        """Add a piece of text and publish the output."""
        self._add_piece("text", piece)

    async def add_thinking(self, piece: str) -> None:
        """Add a piece of thinking and publish the output."""
        self._add_piece("thinking", piece)

    def _add_piece(self, name: str, piece: str) -> None:
        pieces = self._pieces.setdefault(name, [])
        is_first = not pieces
        pieces.append(piece)
        get_output_publisher().publish(self._step.pk, self._build_output, is_first=is_first)

    def _build_output(self) -> PartialOutput:
        return _build_partial_output(self._lease, self._step, self._organization_id, self.output)


async def show_progress(
    lease: SessionLease,
    step: Step,
    organization_id: UUID,
    done: float,
    total: float | None,
    message: str | None,
) -> None:
    """Publish a call's progress (`notifications/progress`)."""
    progress = {"done": done, "total": total, "message": message or ""}
    get_output_publisher().publish(
        step.pk,
        partial(_build_partial_output, lease, step, organization_id, {"progress": progress}),
    )


def _build_partial_output(
    lease: SessionLease, step: Step, organization_id: UUID, shown_output: Mapping[str, Any]
) -> PartialOutput:
    return PartialOutput(
        step_id=step.pk,
        session_id=lease.session_id,
        organization_id=organization_id,
        fence=lease.fence,
        seq=step.seq,
        saved_payload=step.payload,
        shown=shown_output,
    )


_by_runtime: WeakKeyDictionary[Runtime, PartialOutputPublisher] = WeakKeyDictionary()


def get_output_publisher() -> PartialOutputPublisher:
    """Return the output publisher of this process's runtime."""
    with _lock:
        return _by_runtime.setdefault(get_runtime(), PartialOutputPublisher())
