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
from itertools import islice
from typing import Any

from django.conf import settings
from django.db import DatabaseError
from django.db.models import Count, Min, Q, QuerySet
from django.utils import timezone
from prometheus_client import Info
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from agents.budgets.services import load_budget_use
from agents.models import Approval, Budget, Inbox, Runner, Session
from agents.sessions import leases as session_leases
from bonobot import __version__
from bonobot.accounts.tokens.constraints import is_in_networks
from bonobot.core.runtime import get_runtime
from bonobot.core.telemetry import metrics
from bonobot.jobs import broker
from bonobot.notifications.models import Notice
from mcp_servers.models import Server
from mcp_servers.subscriptions import leases as subscription_leases

PATH = "/metrics"
ROWS_READ_EVERY_S = 10.0
BATCH = 500

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
        return [build_family(name) for name in FAMILIES]

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
        up = build_family("bonobot_rows_readable")
        try:
            found = list(collect_row_metrics())
        except DatabaseError:
            up.add_metric((), 0)
            return [up]
        up.add_metric((), 1)
        return [up, *found, *collect_queue_metrics()]


FAMILIES = {
    "bonobot_rows_readable": ("1 while beat can read them.", ()),
    "bonobot_waiting": ("What waits for its turn.", ("queue",)),
    "bonobot_waiting_seconds": ("How long the oldest of them waits beyond its time.", ("queue",)),
    "bonobot_queue_messages": ("Messages that no worker has taken yet.", ("queue",)),
    "bonobot_queue_seconds": ("How long the oldest of them has waited.", ("queue",)),
    "bonobot_sessions": ("Sessions that aren't over.", ("status",)),
    "bonobot_runners": (
        "Workers: alive, or lapsed (neither heard of nor stopped).",
        ("state",),
    ),
    "bonobot_leases": ("Leases of sessions and of listening to servers.", ("kind", "state")),
    "bonobot_servers": ("Servers that are switched on.", ("status",)),
    "bonobot_budgets": ("Budgets by how much is spent: below, warned, spent.", ("state",)),
}


def build_family(name: str) -> GaugeMetricFamily:
    """Return an empty family of one of the names."""
    text, labels = FAMILIES[name]
    return GaugeMetricFamily(name, text, labels=labels)


def begin_rows(leads: Callable[[], bool]) -> None:
    """Have this process tell what the rows say while it leads; beat does."""
    metrics.registry.register(RowMetricsCollector(leads))


def collect_row_metrics() -> Iterator[GaugeMetricFamily]:
    """Yield what the rows say; some ten queries, whatever their number."""
    yield from _collect_waiting()
    sessions, leases = build_family("bonobot_sessions"), build_family("bonobot_leases")
    open_ = ("queued", "running", "waiting")
    counted = _count_by_column(Session.objects.filter(status__in=open_), "status")
    for status in open_:
        sessions.add_metric((status,), counted.get(status, 0))
    yield sessions
    yield _collect_runners()
    lapsed = Q(runner=None) | Q(runner__beat_at__lt=session_leases.get_heartbeat_deadline())
    running = Session.objects.filter(status=Session.Status.RUNNING)
    _split(leases, "session", running.count(), running.filter(lapsed).count())
    heard = subscription_leases.list_wanted_subscriptions().count()
    _split(leases, "watch", heard, subscription_leases.list_unclaimed_subscriptions().count())
    yield leases
    servers = build_family("bonobot_servers")
    for status, number in _count_by_column(Server.objects.enabled(), "status").items():
        servers.add_metric((status,), number)
    yield servers
    yield _collect_budgets()


def collect_queue_metrics() -> Iterator[GaugeMetricFamily]:
    """Yield what waits in the broker's queues; nothing where it doesn't answer."""
    many, long = build_family("bonobot_queue_messages"), build_family("bonobot_queue_seconds")
    try:
        found = broker.list_queue_backlogs()
    except broker.BrokerUnreachable:
        return
    for one in found:
        many.add_metric((one.queue,), one.messages)
        long.add_metric((one.queue,), one.oldest_s)
    yield many
    yield long


def _count_by_column(found: QuerySet[Any], column: str) -> dict[str, int]:
    return dict(found.order_by().values_list(column).annotate(number=Count("pk")))


def _collect_waiting() -> Iterator[GaugeMetricFamily]:
    many, long = build_family("bonobot_waiting"), build_family("bonobot_waiting_seconds")
    now = timezone.now()
    queued = Session.objects.filter(status=Session.Status.QUEUED)
    said = Inbox.objects.filter(taken_at=None, session__in=queued)
    asked = Approval.objects.filter(state=Approval.State.WAITING)
    checks, notices = Server.objects.due(), Notice.objects.due()
    for name, found, oldest in (
        ("sessions", queued, said.aggregate(at=Min("created_at"))),
        ("checks", checks, checks.aggregate(at=Min("next_check_at"))),
        ("notices", notices, notices.aggregate(at=Min("next_attempt_at"))),
        ("approvals", asked, asked.aggregate(at=Min("created_at"))),
    ):
        many.add_metric((name,), found.count())
        long.add_metric((name,), max((now - (oldest["at"] or now)).total_seconds(), 0))
    yield many
    yield long


def _collect_runners() -> GaugeMetricFamily:
    found = build_family("bonobot_runners")
    unstopped = Runner.objects.filter(stopped_at=None)
    alive = unstopped.filter(beat_at__gt=session_leases.get_heartbeat_deadline()).count()
    found.add_metric(("alive",), alive)
    found.add_metric(("lapsed",), unstopped.count() - alive)
    return found


def _split(found: GaugeMetricFamily, kind: str, all_: int, lapsed: int) -> None:
    found.add_metric((kind, "held"), all_ - lapsed)
    found.add_metric((kind, "lapsed"), lapsed)


def _collect_budgets() -> GaugeMetricFamily:
    states = dict.fromkeys(("below", "warned", "spent"), 0)
    wanted = Budget.objects.filter(each_session=False).iterator(BATCH)
    while batch := list(islice(wanted, BATCH)):
        for use in load_budget_use(batch):
            states[{"good": "below", "warn": "warned", "bad": "spent"}[use.tone]] += 1
    found = build_family("bonobot_budgets")
    for state, number in states.items():
        found.add_metric((state,), number)
    return found
