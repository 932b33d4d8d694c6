"""`/metrics`: access, row gauges.

Each process counts for itself and is scraped by itself: web at its own address, worker and beat at
`BONOBOT_PROBE_ADDRESS`. What is read from rows would be the same everywhere, so beat alone tells
it, of which one leads: sums over all processes are right. A request is let in by
`BONOBOT_METRICS_TOKEN` as its bearer, or by coming from one of `BONOBOT_METRICS_NETWORKS`.
"""

import hmac
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from django.conf import settings
from django.db import DatabaseError
from django.db.models import Min
from prometheus_client import Info
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from bonobot import __version__
from bonobot.accounts.tokens.constraints import is_in_networks
from bonobot.core.runtime import get_runtime
from bonobot.core.telemetry import metrics
from bonobot.jobs import broker
from bonobot.monitoring.row_gauges import (
    LEASES,
    WAITING,
    WAITING_SECONDS,
    GaugeFamily,
    GaugeSample,
    build_backlog_samples,
    load_registered_gauges,
)
from bonobot.notifications.models import Notice

PATH = "/metrics"
ROWS_READ_EVERY_S = 10.0

build = Info("bonobot_build", "The version.", registry=metrics.registry)
build.info({"version": __version__})


def can_read_metrics(authorization: str, client: str) -> bool:
    """Tell whether somebody may read them: by the token, or from one of the networks."""
    token, networks = settings.BONOBOT_METRICS_TOKEN, settings.BONOBOT_METRICS_NETWORKS
    given = authorization.removeprefix("Bearer ").strip().encode("utf-8", "replace")
    if token and hmac.compare_digest(given, token.encode("utf-8")):
        return True
    return bool(networks) and is_in_networks(client, networks)


def is_endpoint_closed() -> bool:
    """Tell whether nobody is let in: then it looks as if there were nothing."""
    return not settings.BONOBOT_METRICS_TOKEN and not settings.BONOBOT_METRICS_NETWORKS


def answer(authorization: str, client: str) -> tuple[int, str, bytes]:
    """Return status, content type and body; in a thread that may use the database."""
    if is_endpoint_closed():
        return 404, "text/plain", b"Not found\n"
    if not can_read_metrics(authorization, client):
        return 401, "text/plain", b"BONOBOT_METRICS_TOKEN is asked for\n"
    return 200, CONTENT_TYPE_LATEST, generate_latest(metrics.registry)


async def respond(scope: dict[str, Any], send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Answer an ASGI request for `/metrics`."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    client = (scope.get("client") or ("",))[0]
    given = headers.get(b"authorization", "")
    status, kind, body = await get_runtime().orm(answer, given, client)
    told = [(b"content-type", kind.encode("ascii")), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})


class RowMetricsCollector(Collector):
    """What the rows say, read at most every ten seconds; beat registers it."""

    def __init__(self, leads: Callable[[], bool] = lambda: True) -> None:
        self._leads = leads
        self._lock = threading.Lock()
        self._read_at = 0.0
        self._read: list[GaugeMetricFamily] = []

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the names without asking the database."""
        return [build_family(one) for one in list_families()]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return what is so; without a database that answers, nothing but that it doesn't.

        A beat that stands by tells nothing.
        """
        if not self._leads():
            return []
        with self._lock:
            if not self._read_at or time.monotonic() - self._read_at > ROWS_READ_EVERY_S:
                self._read, self._read_at = self._looked(), time.monotonic()
            return self._read

    def _looked(self) -> list[GaugeMetricFamily]:
        up = build_family(ROWS_READABLE)
        try:
            found = list(collect_row_metrics())
        except DatabaseError:
            up.add_metric((), 0)
            return [up]
        up.add_metric((), 1)
        return [up, *found, *collect_queue_metrics()]


ROWS_READABLE = GaugeFamily("bonobot_rows_readable", "1 while beat can read them.")
QUEUE_MESSAGES = GaugeFamily(
    "bonobot_queue_messages", "Messages that no worker has taken yet.", ("queue",)
)
QUEUE_SECONDS = GaugeFamily(
    "bonobot_queue_seconds", "How long the oldest of them has waited.", ("queue",)
)
# Gauges that packages above add samples to, beside those of their own.
SHARED_FAMILIES = (
    GaugeFamily(WAITING, "What waits for its turn.", ("queue",)),
    GaugeFamily(WAITING_SECONDS, "How long the oldest of them waits beyond its time.", ("queue",)),
    GaugeFamily(LEASES, "Leases of sessions and of listening to servers.", ("kind", "state")),
)


def list_families() -> list[GaugeFamily]:
    """Return all gauges that beat adds to the counters of its process."""
    return [ROWS_READABLE, *_list_row_families(), QUEUE_MESSAGES, QUEUE_SECONDS]


def _list_row_families() -> list[GaugeFamily]:
    registered = (family for one in load_registered_gauges() for family in one.families)
    return [*SHARED_FAMILIES, *registered]


def build_family(family: GaugeFamily) -> GaugeMetricFamily:
    """Return a family without samples."""
    return GaugeMetricFamily(family.name, family.text, labels=family.labels)


def begin_rows(leads: Callable[[], bool]) -> None:
    """Have this process tell what the rows say while it leads; beat does."""
    metrics.registry.register(RowMetricsCollector(leads))


def collect_row_metrics() -> Iterator[GaugeMetricFamily]:
    """Yield what the rows say; some ten queries, whatever their number."""
    families = {one.name: build_family(one) for one in _list_row_families()}
    for sample in _collect_samples():
        families[sample.name].add_metric(sample.labels, sample.value)
    yield from families.values()


def _collect_samples() -> Iterator[GaugeSample]:
    notices = Notice.objects.due()
    oldest = notices.aggregate(at=Min("next_attempt_at"))
    yield from build_backlog_samples("notices", notices.count(), oldest["at"])
    for one in load_registered_gauges():
        yield from one.collect()


def collect_queue_metrics() -> Iterator[GaugeMetricFamily]:
    """Yield what waits in the broker's queues; nothing where it doesn't answer."""
    many, long = build_family(QUEUE_MESSAGES), build_family(QUEUE_SECONDS)
    try:
        found = broker.list_queue_backlogs()
    except broker.BrokerUnreachable:
        return
    for one in found:
        many.add_metric((one.queue,), one.messages)
        long.add_metric((one.queue,), one.oldest_s)
    yield many
    yield long
