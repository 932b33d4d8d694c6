"""`/healthz` and `/readyz`.

`/healthz` returns 200 once the database was reachable with all migrations applied, and doesn't
query it afterwards: a short outage must not make an orchestrator restart every process. It is
handled before Django's middleware, so it needs no host name, session or thread.

`/readyz` returns 503 if a part that every request needs fails: the database, its migrations, the
encryption keys, or the event loop. The broker, beat and workers only make it `degraded`, because
their work waits in the database; removing every web process from the load balancer would stop what
still works. `/readyz?all` returns 503 for those too.

A report is cached for two seconds and keys are tried once a minute. Only one report is measured at
a time, so that requests don't pile up on a hanging database.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django_celery_beat.models import PeriodicTask

from bonobot.accounts.models import Token
from bonobot.core.crypto.encrypted_fields import can_unseal, list_sealed_fields
from bonobot.core.runtime import get_runtime
from bonobot.jobs import broker, schedules
from bonobot.jobs.celery_beat import SYNC_INTERVAL_S
from bonobot.monitoring import database_state
from bonobot.monitoring.extension_points import ReadinessPart, readiness_parts

LIVENESS_PATH = "/healthz"
logger = logging.getLogger(__name__)
READINESS_PATH = "/readyz"
REPORT_CACHE_S = 2.0
KEY_PROBE_INTERVAL_S = 60.0
REPORT_TIMEOUT_S = 5.0
STUCK_S = 5.0
# Parts that every request needs.
REQUIRED_PARTS = frozenset({"database", "migrations", "keys", "loop"})


@login_not_required
def answer_healthz(request: HttpRequest) -> JsonResponse:
    """Answer `/healthz` as a Django view, for servers like `runserver`."""
    status, body = _build_healthz_response(database_state.find_readiness_problem())
    return JsonResponse(body, status=status, headers={"Cache-Control": "no-store"})


async def respond_healthz(send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Answer an ASGI request for `/healthz`."""
    problem = (
        ""
        if database_state.is_ready()
        else await get_runtime().run_orm(database_state.find_readiness_problem)
    )
    status, body = _build_healthz_response(problem)
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode("ascii")})


def _build_healthz_response(problem: str) -> tuple[int, dict[str, str]]:
    if problem:
        return 503, {"status": "starting", "detail": problem}
    return 200, {"status": "ok"}


@dataclass(frozen=True)
class ReadinessReport:
    """The parts of a report and when it was measured (monotonic seconds)."""

    parts: tuple[ReadinessPart, ...]
    measured_at: float

    @property
    def failed(self) -> frozenset[str]:
        return frozenset(part.name for part in self.parts if part.state == "failed")

    @property
    def status(self) -> str:
        """`ready`, `degraded` (an optional part failed) or `unready`."""
        if self.failed & REQUIRED_PARTS:
            return "unready"
        return "degraded" if self.failed else "ready"

    def build_response(self, *, include_degraded: bool = False) -> tuple[int, dict[str, Any]]:
        """Return HTTP status and body; with `include_degraded`, `degraded` is a 503, too."""
        failing = self.failed if include_degraded else self.failed & REQUIRED_PARTS
        checks = [
            {"name": part.name, "state": part.state, "detail": part.detail} for part in self.parts
        ]
        return (503 if failing else 200), {"status": self.status, "checks": checks}


def measure_readiness() -> ReadinessReport:
    """Probe all parts; call in a thread that may use the database."""
    try:
        parts = [*_probe_database(), _probe_broker(), _probe_loop()]
        if all(part.state == "ok" for part in parts[:2]):  # the others read rows
            parts[2:2] = [_probe_keys(), _probe_beat(), *(probe() for probe in readiness_parts)]
    except DatabaseError:
        parts = [
            ReadinessPart("database", "failed", "the database doesn't respond"),
            _probe_broker(),
            _probe_loop(),
        ]
    return ReadinessReport(tuple(parts), time.monotonic())


def compute_beat_age_s(row: PeriodicTask) -> float | None:
    """Return the seconds since beat last wrote the heartbeat row; None if never."""
    if row.last_run_at is None:
        return None
    return float((timezone.now() - row.last_run_at).total_seconds())


def compute_beat_deadline_s(row: PeriodicTask) -> float:
    """Return the age in seconds from which beat counts as missing, with time for a restart."""
    return float(schedules.compute_period_s(row) + 5 * SYNC_INTERVAL_S)


def list_unreadable_fields() -> Iterator[str]:
    """Yield encrypted fields that no key can decrypt, and `tokens` if a pepper is missing.

    Tries one value per field, as keys are usually wrong for all or none.
    """
    for field in list_sealed_fields():
        rows = field.model._base_manager.exclude(**{field.attname: ""})
        row = rows.exclude(**{f"{field.attname}__isnull": True}).only(field.attname).first()
        if row is not None and not can_unseal(getattr(row, field.attname).mark):
            yield f"{field.model._meta.label_lower}.{field.name}"
    pepper_ids = list(settings.BONOBOT_TOKEN_PEPPERS)
    if Token.objects.exclude(pepper_id__in=pepper_ids).exists():
        yield "tokens"


def _probe_database() -> Iterator[ReadinessPart]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    yield ReadinessPart("database", "ok", "answers")
    problem = database_state.find_readiness_problem()
    yield ReadinessPart("migrations", "failed" if problem else "ok", problem or "all applied")


class _KeyProbeResult:
    """The last result of the key probe and when it was measured."""

    at = 0.0
    unreadable: tuple[str, ...] = ()


def _probe_keys() -> ReadinessPart:
    if not _KeyProbeResult.at or time.monotonic() - _KeyProbeResult.at > KEY_PROBE_INTERVAL_S:
        _KeyProbeResult.unreadable, _KeyProbeResult.at = (
            tuple(list_unreadable_fields()),
            time.monotonic(),
        )
    if _KeyProbeResult.unreadable:
        names = ", ".join(_KeyProbeResult.unreadable)
        return ReadinessPart("keys", "failed", f"these were made with other keys: {names}")
    return ReadinessPart("keys", "ok", "open what is stored")


def _probe_broker() -> ReadinessPart:
    try:
        broker.check_broker()
    except broker.BrokerUnreachable:
        detail = "Redis doesn't answer" if settings.REDIS_URL else "the folder isn't writable"
        return ReadinessPart("broker", "failed", detail)
    return ReadinessPart(
        "broker", "ok", "answers" if settings.REDIS_URL else "the folder is writable"
    )


def _probe_beat() -> ReadinessPart:
    row = PeriodicTask.objects.select_related("interval").filter(name=schedules.HEARTBEAT).first()
    age = compute_beat_age_s(row) if row else None
    if row is None or age is None:
        return ReadinessPart("beat", "failed", "has never run here")
    is_late = age > compute_beat_deadline_s(row)
    return ReadinessPart("beat", "failed" if is_late else "ok", f"wrote {age:.0f} s ago")


def _probe_loop() -> ReadinessPart:
    age_s = time.monotonic() - get_runtime().ticked_at
    is_stuck = age_s > STUCK_S
    return ReadinessPart("loop", "failed" if is_stuck else "ok", "stuck" if is_stuck else "ticks")


class ReadinessCache:
    """The cached readiness report of one process."""

    def __init__(self) -> None:
        self._last: ReadinessReport | None = None
        self._measuring: asyncio.Task[ReadinessReport] | None = None

    async def get_report(self) -> ReadinessReport:
        """Return a report at most two seconds old; call on the runtime's loop."""
        if self._last and time.monotonic() - self._last.measured_at < REPORT_CACHE_S:
            return self._last
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(
                get_runtime().run_orm(measure_readiness), name="readiness"
            )
        try:
            async with asyncio.timeout(REPORT_TIMEOUT_S):
                self._last = await asyncio.shield(self._measuring)
        except TimeoutError:
            timed_out = ReadinessPart(
                "database", "failed", f"no answer within {REPORT_TIMEOUT_S:.0f} s"
            )
            return ReadinessReport((timed_out,), time.monotonic())
        except Exception:
            # The probe needs a response in any case; the log has the reason.
            logger.exception("The readiness check failed")
            failed = ReadinessPart("database", "failed", "looking at it failed: the log says why")
            return ReadinessReport((failed,), time.monotonic())
        return self._last


readiness_cache = ReadinessCache()


@login_not_required
def answer_readyz(request: HttpRequest) -> JsonResponse:
    """Answer `/readyz` as a Django view, for servers like `runserver`."""
    status, body = measure_readiness().build_response(include_degraded="all" in request.GET)
    return JsonResponse(body, status=status, headers={"Cache-Control": "no-store"})


async def respond_readyz(query: bytes, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Answer an ASGI request for `/readyz`."""
    report = await readiness_cache.get_report()
    status, body = report.build_response(include_degraded=query.split(b"=")[0] == b"all")
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode("ascii")})
