"""`/readyz`: whether this process can serve right now, part by part; no secrets, no addresses.

What a request can't do without (the database, its migrations, keys that open what is stored, a loop
that isn't stuck) decides: without it the answer is 503. The broker, beat and workers are told as
well, and only make it `degraded`: rows are the truth and wait for them, while taking every web
process out of its balancer would end what still works. `/readyz?all` answers 503 for those too.

It is cheap: asked again within two seconds, it repeats itself; keys are tried once a minute; one
question at a time is out, so that a database that hangs isn't asked by everybody.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django_celery_beat.models import PeriodicTask

from agents.models import Runner
from agents.sessions import runners
from bonobot import broker, health, schedules
from bonobot.beat import WRITTEN_EVERY_S
from bonobot.lib.runtime import runtime
from bonobot.lib.sealed import sealed_fields
from bonobot.lib.seals import openable
from bonobot.tenancy.models import Token

logger = logging.getLogger(__name__)

PATH = "/readyz"
REPEATED_S = 2.0
KEYS_TRIED_EVERY_S = 60.0
ANSWER_S = 5.0
STUCK_S = 5.0
# Without these no request can be answered.
NEEDED = frozenset({"database", "migrations", "keys", "loop"})

State = Literal["ok", "failed"]


@dataclass(frozen=True)
class Part:
    """One part and its verdict."""

    name: str
    state: State
    detail: str


@dataclass(frozen=True)
class Report:
    """What was found, and when (monotonic seconds)."""

    parts: tuple[Part, ...]
    at: float

    @property
    def failed(self) -> frozenset[str]:
        """The names of the parts that failed."""
        return frozenset(part.name for part in self.parts if part.state == "failed")

    @property
    def status(self) -> str:
        """One word for it: `ready`, `degraded` (others are missing) or `unready`."""
        if self.failed & NEEDED:
            return "unready"
        return "degraded" if self.failed else "ready"

    def answer(self, *, everything: bool = False) -> tuple[int, dict[str, Any]]:
        """Return the HTTP status and body; with `everything`, what is degraded is a 503, too."""
        bad = self.failed if everything else self.failed & NEEDED
        checks = [
            {"name": one.name, "state": one.state, "detail": one.detail} for one in self.parts
        ]
        return (503 if bad else 200), {"status": self.status, "checks": checks}


def measure() -> Report:
    """Look at everything, in a thread that may use the database."""
    try:
        parts = [*_database(), _broker(), _loop()]
        if all(part.state == "ok" for part in parts[:2]):  # else the rows can't be read
            parts[2:2] = [_keys(), _beat(), _worker()]
    except DatabaseError:
        parts = [Part("database", "failed", "the database doesn't answer"), _broker(), _loop()]
    return Report(tuple(parts), time.monotonic())


def beat_age_s(row: PeriodicTask) -> float | None:
    """Return how long ago beat wrote the heartbeat's row; None when it never did."""
    if row.last_run_at is None:
        return None
    return float((timezone.now() - row.last_run_at).total_seconds())


def beat_late_after_s(row: PeriodicTask) -> float:
    """Return the age from which beat is missing: it writes each half minute, and may restart."""
    return float(schedules.period_s(row) + 5 * WRITTEN_EVERY_S)


def unopened() -> Iterator[str]:
    """Yield the sealed fields of which a value opens with no key, and `tokens` without a pepper.

    One value of each is tried: keys are wrong for all of them, or for none.
    """
    for field in sealed_fields():
        rows = field.model._base_manager.exclude(**{field.attname: ""})
        row = rows.exclude(**{f"{field.attname}__isnull": True}).only(field.attname).first()
        if row is not None and not openable(getattr(row, field.attname).mark):
            yield f"{field.model._meta.label_lower}.{field.name}"
    known = list(settings.BONOBOT_TOKEN_PEPPERS)
    if Token.objects.exclude(pepper_id__in=known).exists():
        yield "tokens"


def _database() -> Iterator[Part]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    yield Part("database", "ok", "answers")
    fault = health.fault()
    yield Part("migrations", "failed" if fault else "ok", fault or "all applied")


class _Tried:
    """What trying the keys found, and when."""

    at = 0.0
    found: tuple[str, ...] = ()


def _keys() -> Part:
    if not _Tried.at or time.monotonic() - _Tried.at > KEYS_TRIED_EVERY_S:
        _Tried.found, _Tried.at = tuple(unopened()), time.monotonic()
    if _Tried.found:
        names = ", ".join(_Tried.found)
        return Part("keys", "failed", f"these were made with other keys: {names}")
    return Part("keys", "ok", "open what is stored")


def _broker() -> Part:
    try:
        broker.ping()
    except broker.Unreachable:
        fault = "Redis doesn't answer" if settings.REDIS_URL else "the folder isn't writable"
        return Part("broker", "failed", fault)
    return Part("broker", "ok", "answers" if settings.REDIS_URL else "the folder is writable")


def _beat() -> Part:
    row = PeriodicTask.objects.select_related("interval").filter(name=schedules.HEARTBEAT).first()
    age = beat_age_s(row) if row else None
    if row is None or age is None:
        return Part("beat", "failed", "has never run here")
    late = age > beat_late_after_s(row)
    return Part("beat", "failed" if late else "ok", f"wrote {age:.0f} s ago")


def _worker() -> Part:
    alive = Runner.objects.filter(stopped_at=None, beat_at__gt=runners.deadline()).count()
    return Part("worker", "ok" if alive else "failed", f"{alive} alive")


def _loop() -> Part:
    behind = time.monotonic() - runtime().ticked_at
    stuck = behind > STUCK_S
    return Part("loop", "failed" if stuck else "ok", "stuck" if stuck else "ticks")


class Readiness:
    """The answers of one process."""

    def __init__(self) -> None:
        self._last: Report | None = None
        self._looking: asyncio.Task[Report] | None = None

    async def now(self) -> Report:
        """Return what is so, at most two seconds old; on the runtime's loop."""
        if self._last and time.monotonic() - self._last.at < REPEATED_S:
            return self._last
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(runtime().orm(measure), name="readiness")
        try:
            async with asyncio.timeout(ANSWER_S):
                self._last = await asyncio.shield(self._looking)
        except TimeoutError:
            late = Part("database", "failed", f"no answer within {ANSWER_S:.0f} s")
            return Report((late,), time.monotonic())
        except Exception:
            # Whoever asks must be told in any case; the log has why.
            logger.exception("Looking at the readiness failed")
            broken = Part("database", "failed", "looking at it failed: the log says why")
            return Report((broken,), time.monotonic())
        return self._last


readiness = Readiness()


@login_not_required
def readyz(request: HttpRequest) -> JsonResponse:
    """Answer under a server other than ours (`runserver`)."""
    status, body = measure().answer(everything="all" in request.GET)
    return JsonResponse(body, status=status, headers={"Cache-Control": "no-store"})


async def respond(query: bytes, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Answer an ASGI request for `/readyz`."""
    report = await readiness.now()
    status, body = report.answer(everything=query.split(b"=")[0] == b"all")
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode("ascii")})
