"""`/metrics`: access control, and gauges read from rows.

Each process is scraped separately: web at its own address, worker and beat at
`BONOBOT_PROBE_ADDRESS`. Gauges read from rows would be the same in all processes, so only the
leading beat exports them; sums over all processes are then right. Access needs the bearer token
`BONOBOT_METRICS_TOKEN` or an address in `BONOBOT_METRICS_NETWORKS`.
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
from bonobot.monitoring.extension_points import (
    LEASES,
    WAITING,
    WAITING_SECONDS,
    GaugeFamily,
    GaugeSample,
    build_backlog_samples,
    row_gauges,
)
from bonobot.notifications.models import Notification

PATH = "/metrics"
ROWS_READ_INTERVAL_S = 10.0

build_info = Info("bonobot_build", "The version.", registry=metrics.registry)
build_info.info({"version": __version__})

ROWS_READABLE = GaugeFamily("bonobot_rows_readable", "1 if beat can read the rows of the database.")
QUEUE_MESSAGES = GaugeFamily(
    "bonobot_queue_messages", "Messages that wait for a worker.", ("queue",)
)
QUEUE_SECONDS = GaugeFamily(
    "bonobot_queue_seconds", "Age of the oldest waiting message, in seconds.", ("queue",)
)
# Gauges that other packages add samples to, in addition to their own.
SHARED_FAMILIES = (
    GaugeFamily(WAITING, "Items that wait to be processed.", ("queue",)),
    GaugeFamily(WAITING_SECONDS, "Delay of the oldest waiting item, in seconds.", ("queue",)),
    GaugeFamily(LEASES, "Leases of sessions and of server subscriptions.", ("kind", "state")),
)


def can_read_metrics(authorization: str, client: str) -> bool:
    """Return whether a client may read the metrics, by its token or network."""
    token, networks = settings.BONOBOT_METRICS_TOKEN, settings.BONOBOT_METRICS_NETWORKS
    presented = authorization.removeprefix("Bearer ").strip().encode("utf-8", "replace")
    if token and hmac.compare_digest(presented, token.encode("utf-8")):
        return True
    return bool(networks) and is_in_networks(client, networks)


def is_endpoint_closed() -> bool:
    """Return whether no access is configured; the endpoint is then a 404."""
    return not settings.BONOBOT_METRICS_TOKEN and not settings.BONOBOT_METRICS_NETWORKS


def build_response(authorization: str, client: str) -> tuple[int, str, bytes]:
    """Return status, content type and body; call in a thread that may use the database."""
    if is_endpoint_closed():
        return 404, "text/plain", b"Not found\n"
    if not can_read_metrics(authorization, client):
        return 401, "text/plain", b"BONOBOT_METRICS_TOKEN is asked for\n"
    return 200, CONTENT_TYPE_LATEST, generate_latest(metrics.registry)


async def respond_metrics(
    scope: dict[str, Any], send: Callable[[dict[str, Any]], Awaitable[None]]
) -> None:
    """Answer an ASGI request for `/metrics`."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    client = (scope.get("client") or ("",))[0]
    authorization = headers.get(b"authorization", "")
    status, content_type, body = await get_runtime().run_orm(build_response, authorization, client)
    response_headers = [
        (b"content-type", content_type.encode("ascii")),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": response_headers})
    await send({"type": "http.response.body", "body": body})


class RowMetricsCollector(Collector):
    """Gauges read from rows at most every ten seconds; registered by beat."""

    def __init__(self, is_leader: Callable[[], bool] = lambda: True) -> None:
        self._is_leader = is_leader
        self._lock = threading.Lock()
        self._read_at = 0.0
        self._families: list[GaugeMetricFamily] = []

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the families without querying the database."""
        return [build_family(family) for family in list_families()]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges; without a database, only that the rows can't be read.

        Returns nothing unless this beat leads.
        """
        if not self._is_leader():
            return []
        with self._lock:
            if not self._read_at or time.monotonic() - self._read_at > ROWS_READ_INTERVAL_S:
                self._families, self._read_at = self._load_families(), time.monotonic()
            return self._families

    def _load_families(self) -> list[GaugeMetricFamily]:
        up = build_family(ROWS_READABLE)
        try:
            families = list(collect_row_metrics())
        except DatabaseError:
            up.add_metric((), 0)
            return [up]
        up.add_metric((), 1)
        return [up, *families, *collect_queue_metrics()]


def list_families() -> list[GaugeFamily]:
    """Return all gauges that beat exports in addition to its process metrics."""
    return [ROWS_READABLE, *_list_row_families(), QUEUE_MESSAGES, QUEUE_SECONDS]


def _list_row_families() -> list[GaugeFamily]:
    registered = (family for build in row_gauges for family in build().families)
    return [*SHARED_FAMILIES, *registered]


def build_family(family: GaugeFamily) -> GaugeMetricFamily:
    """Return a family without samples."""
    return GaugeMetricFamily(family.name, family.text, labels=family.labels)


def register_row_metrics(is_leader: Callable[[], bool]) -> None:
    """Export gauges read from rows while this process leads; called by beat."""
    metrics.registry.register(RowMetricsCollector(is_leader))


def collect_row_metrics() -> Iterator[GaugeMetricFamily]:
    """Yield the gauges read from rows; about ten queries, independent of the number of rows."""
    families = {family.name: build_family(family) for family in _list_row_families()}
    for sample in _collect_samples():
        families[sample.name].add_metric(sample.labels, sample.value)
    yield from families.values()


def _collect_samples() -> Iterator[GaugeSample]:
    notices = Notification.objects.due()
    oldest = notices.aggregate(at=Min("next_attempt_at"))
    yield from build_backlog_samples("notices", notices.count(), oldest["at"])
    for build in row_gauges:
        yield from build().collect()


def collect_queue_metrics() -> Iterator[GaugeMetricFamily]:
    """Yield the backlog of the broker's queues; nothing if it is unreachable."""
    messages, oldest_seconds = build_family(QUEUE_MESSAGES), build_family(QUEUE_SECONDS)
    try:
        backlogs = broker.list_queue_backlogs()
    except broker.BrokerUnreachable:
        return
    for backlog in backlogs:
        messages.add_metric((backlog.queue,), backlog.messages)
        oldest_seconds.add_metric((backlog.queue,), backlog.oldest_s)
    yield messages
    yield oldest_seconds
