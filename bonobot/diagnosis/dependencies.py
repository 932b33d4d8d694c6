"""What it depends on: database, keys, broker, workers, beat, and whom tokens are taken from."""

import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from celery.app.control import Inspect
from django.conf import settings
from django.db import DatabaseError, connection
from django_celery_beat.models import PeriodicTask
from kombu.exceptions import OperationalError

from bonobot import health, readiness, schedules
from bonobot.celery import app
from bonobot.checks import OLDEST_SQLITE
from bonobot.diagnosis.findings import Finding
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from bonobot.tenancy.keyrings import IssuerUnreachable, Whose, keyrings
from bonobot.tenancy.models import Issuer
from mcp_servers.watch_leases import listened_to, unheld

PING_S = 1
SWEEP = "agents.tasks.sweep"
SWEEP_EVERY_S = 10
CLOCKS_APART_S = 2.0
# The least that shares a database: two of web, two workers and beat.
PROCESSES = 5
START_BEAT = say("Start one: `bonobot up`, or `bonobot beat`; a second one stands by.")


def database() -> Iterator[Finding]:
    """Look at the database and its migrations."""
    begun = time.monotonic()
    try:
        pending = health.unapplied()
        version = ".".join(map(str, connection.get_database_version()))
    except DatabaseError as error:
        fix = say("Start the database or correct `DATABASE_URL`.")
        why = health.why_away(error)
        yield Finding("database", "failed", f"{connection.display_name}: {why}", fix)
        return
    took_ms = (time.monotonic() - begun) * 1000
    detail = say(
        "{display_name} {version}, answered in {took_ms:.0f} ms",
        display_name=connection.display_name,
        version=version,
        took_ms=took_ms,
    )
    if connection.vendor == "sqlite" and sqlite3.sqlite_version_info < OLDEST_SQLITE:
        fix = say("Use a Python with a newer SQLite, or PostgreSQL through `DATABASE_URL`.")
        yield Finding("database", "failed", detail, fix)
    else:
        yield Finding("database", "ok", detail)
    if pending:
        fix = say("Run `bonobot migrate`.")
        yield Finding(
            "migrations", "failed", say("{pending} are not applied", pending=pending), fix
        )
    else:
        yield Finding("migrations", "ok", say("all applied"))


def secrets() -> Iterator[Finding]:
    """Look whether the keys open what is stored."""
    if unopened := list(readiness.unopened()):
        fix = say(
            "Restore the keys they were made with: add them to `BONOBOT_FIELD_KEYS` "
            "(or, for tokens, to `BONOBOT_TOKEN_PEPPERS`), behind the first."
        )
        detail = say("made with other keys: {unopened}", unopened=", ".join(unopened))
        yield Finding("secrets", "failed", detail, fix)
    else:
        yield Finding("secrets", "ok", say("the keys open what is stored"))


def clock() -> Iterator[Finding]:
    """Look whether this host and the database agree about the time: leases are compared by it."""
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        before = time.time()
        cursor.execute(
            "SELECT extract(epoch FROM clock_timestamp()), current_setting('max_connections')"
        )
        then, allowed = cursor.fetchone()
    apart = abs(float(then) - (before + time.time()) / 2)
    if apart > CLOCKS_APART_S:
        fix = say("Let a time service (chrony, systemd-timesyncd) set the clocks of all hosts.")
        yield Finding("clock", "failed", say("{apart:.1f} s from the database's", apart=apart), fix)
    else:
        yield Finding("clock", "ok", say("{apart:.2f} s from the database's", apart=apart))
    pool = settings.DATABASES["default"]["OPTIONS"]["pool"]["max_size"]
    detail = say("{allowed} allowed, {pool} for each process", allowed=allowed, pool=pool)
    if int(allowed) < PROCESSES * (pool + 1):
        fix = say("Raise `max_connections` of PostgreSQL or lower `BONOBOT_DATABASE_POOL`.")
        yield Finding("connections", "warning", detail, fix)
    else:
        yield Finding("connections", "ok", detail)


def memory_of_redis() -> Iterator[Finding]:
    """Look whether Redis would throw messages away when its memory is full."""
    if not settings.REDIS_URL:
        return
    from redis import Redis
    from redis.exceptions import RedisError

    try:
        with Redis.from_url(settings.REDIS_URL, socket_connect_timeout=PING_S) as link:
            found: Any = link.info("memory")
    except RedisError:
        return  # `broker` says so
    policy = found.get("maxmemory_policy", "noeviction")
    if found.get("maxmemory") and policy != "noeviction":
        fix = say("Set `maxmemory-policy noeviction`: what is lost waits for the next sweep.")
        yield Finding(
            "redis", "warning", say("evicts ({policy}) when it is full", policy=policy), fix
        )
    else:
        yield Finding("redis", "ok", say("evicts nothing"))


def broker() -> Iterator[Finding]:
    """Look at the broker, through it at the workers, and through them at beat."""
    folder = settings.BONOBOT_VAR / "broker"
    name = "Redis" if settings.REDIS_URL else say("the folder {folder}", folder=folder)
    try:
        with app.connection_for_read() as link:
            link.ensure_connection(max_retries=1, timeout=PING_S)
            workers = Inspect(app=app, timeout=PING_S).stats() or {}
    except (OperationalError, OSError) as error:
        yield Finding(
            "broker", "failed", f"{name}: {error}", say("Start it or correct `REDIS_URL`.")
        )
        return
    yield Finding("broker", "ok", name)
    if not workers:
        fix = say("Start one: `bonobot up`, or `bonobot worker`.")
        yield Finding("worker", "failed", say("no worker answers"), fix)
        return
    yield Finding("worker", "ok", ", ".join(sorted(workers)))
    yield beat(workers.values())


def beat(workers: Collection[Mapping[str, Any]]) -> Finding:
    """Tell whether the schedule's sweep ever reached the workers."""
    uptime_s = max(worker["uptime"] for worker in workers)
    sweeps = sum(worker["total"].get(SWEEP, 0) for worker in workers)
    if sweeps:
        return Finding(
            "beat",
            "ok",
            say("sweeps in the last {uptime_s} s: {sweeps}", uptime_s=uptime_s, sweeps=sweeps),
        )
    if uptime_s < 2 * SWEEP_EVERY_S:
        why, fix = say("the workers have just started"), say("Look again soon.")
        return Finding("beat", "warning", why, fix)
    return Finding("beat", "failed", say("no sweep in {uptime_s} s", uptime_s=uptime_s), START_BEAT)


def schedule() -> Iterator[Finding]:
    """Look at what beat wrote last, and at what is switched off."""
    rows = list(PeriodicTask.objects.select_related("interval"))
    beats = [row for row in rows if row.name == schedules.HEARTBEAT]
    age_s = readiness.beat_age_s(beats[0]) if beats else None
    if age_s is None:
        yield Finding("schedule", "warning", say("beat has never run here"), START_BEAT)
    else:
        late = age_s > readiness.beat_late_after_s(beats[0])
        detail = say("beat wrote {age_s:.0f} s ago", age_s=age_s)
        yield Finding("schedule", "failed" if late else "ok", detail, START_BEAT if late else "")
    if off := sorted(row.name for row in rows if not row.enabled):
        fix = say("Switch them on in the admin, under Schedules, unless that is meant so.")
        yield Finding("switched off", "warning", ", ".join(off), fix)


def watching() -> Iterator[Finding]:
    """Look whether the servers that tell what changes are listened to."""
    if not settings.BONOBOT_WATCHED_SERVERS:
        detail = say("nobody listens: `BONOBOT_WATCHED_SERVERS` is 0")
        yield Finding("change notices", "ok", detail)
        return
    wanted, alone = listened_to().count(), unheld().count()
    if alone:
        fix = say("Start a worker more, or raise `BONOBOT_WATCHED_SERVERS`.")
        yield Finding(
            "change notices",
            "warning",
            say("{alone} of {wanted} servers are unheard", alone=alone, wanted=wanted),
            fix,
        )
    else:
        yield Finding(
            "change notices", "ok", say("{wanted} servers are listened to", wanted=wanted)
        )


def issuers() -> Iterator[Finding]:
    """Look whether the issuers whose tokens are taken publish their keys."""
    for row in Issuer.objects.enabled().order_by("name"):
        try:
            ring = runtime().call(keyrings().read, Whose(row.url, row.allow_private))
        except IssuerUnreachable as problem:
            fix = say("Until it answers, its tokens open nothing. Check its URL and the way there.")
            yield Finding(f"issuer {row.name}", "failed", str(problem), fix)
        else:
            yield Finding(
                f"issuer {row.name}",
                "ok",
                say("keys that it publishes: {count}", count=len(ring.keys)),
            )
