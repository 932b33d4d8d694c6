"""Following: a client is told what a session does while it waits for it.

The session is durable and knows nothing of it: a client that goes away, or waits no longer, only
stops the watching.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Any
from uuid import UUID

from agents.models import Session, Step
from agents.session_labels import label_reader_of
from agents.sessions.events import PROGRESS, RESTING, STATE, TEXT, Event
from agents.sessions.watching import follow
from bonobot.gateway.inbound import Inbound
from bonobot.lib.runtime import runtime


class Told:
    """What of a session a client was told: each text once, each call when it begins and ends."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._states: dict[int, str] = {}

    def news(self, events: Sequence[Event]) -> Iterator[str]:
        """Yield what is new to the client, as lines and pieces of text."""
        yield from filter(None, (line for event in events for line in self._lines(event)))

    def _lines(self, event: Event) -> Iterator[str]:
        if event.kind in (Step.Kind.MODEL, TEXT):
            yield from self._text(event)
        elif event.kind == Step.Kind.CALL:
            yield from self._call(event.data)
        elif event.kind == Step.Kind.NOTICE:
            yield str(event.data.get("text", ""))
        elif event.kind == PROGRESS:
            yield str(event.data.get("message", ""))
        elif event.kind == STATE:
            yield f"[{event.data['status']}]"

    def _text(self, event: Event) -> Iterator[str]:
        number, known = event.data["seq"], self._texts.get(event.data["seq"], "")
        said = str(event.data.get("text", ""))
        whole = known[: event.data["at"]] + said if event.kind == TEXT else said
        if whole.startswith(known) and whole != known:
            self._texts[number] = whole
            yield whole[len(known) :]

    def _call(self, step: dict[str, Any]) -> Iterator[str]:
        number, state = step["seq"], step["state"]
        if self._states.get(number) == state:
            return
        self._states[number] = state
        if state == Step.State.INTENT:
            yield f"[calls {step.get('name', '')}]"
        else:
            why = f", {step['code']}" if step.get("code") else ""
            yield f"[{step.get('name', '')}: {state}{why}]"


async def until_rest(inbound: Inbound, session_id: UUID, after_seq: int, wait_s: float) -> None:
    """Wait until a session rests, at most `wait_s`; tell the client meanwhile if it wants it."""
    told, lines = Told(), 0
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            # Watching ends early for who lags behind, and where others' last look was an old one.
            while True:
                async with aclosing(follow(session_id, after_seq)) as looks:
                    async for events in looks:
                        if events:
                            await runtime().orm(
                                label_reader_of, inbound.visitor.principal, session_id
                            )
                        for line in told.news(events) if inbound.wants_progress else ():
                            lines += 1
                            await inbound.progress(lines, None, line)
                if await runtime().orm(_rests, session_id):
                    return


def _rests(session_id: UUID) -> bool:
    return not Session.objects.filter(pk=session_id).exclude(status__in=RESTING).exists()
