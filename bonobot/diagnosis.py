"""What an installation has and lacks, each finding with what to do about it."""

import os
import platform
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import packages_distributions
from typing import Any, Literal

from celery.app.control import Inspect
from django.conf import settings
from django.db import DatabaseError, connection
from django_celery_beat.models import PeriodicTask
from kombu.exceptions import OperationalError

from agents.builtin_tools.sandbox import fault as fault_of_sandbox
from agents.governance.kits import SANDBOXED
from agents.models import Agent
from bonobot import health, readiness, schedules
from bonobot.celery import app
from bonobot.checks import OLDEST_SQLITE, open_key_files
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from bonobot.tenancy.keyrings import IssuerUnreachable, Whose, keyrings
from bonobot.tenancy.models import Issuer
from mcp_servers.connections.confinement import Kind, fault
from mcp_servers.connections.containment import NAMESPACE, TOOLS, containment
from mcp_servers.models import Server
from mcp_servers.watch_leases import listened_to, unheld

State = Literal["ok", "warning", "failed"]
OLDEST_PYTHON = (3, 11)
PING_S = 1
SWEEP = "agents.tasks.sweep"
SWEEP_EVERY_S = 10
CLOCKS_APART_S = 2.0
# The least that shares a database: two of web, two workers and beat.
PROCESSES = 5
BOXES: tuple[Kind, ...] = ("namespaces", "bubblewrap")
START_BEAT = "Start one: `bonobot up`, or `bonobot beat`; a second one stands by."


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: State
    detail: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the finding for programs."""
        return asdict(self)


def diagnose() -> Iterator[Finding]:
    """Yield the findings, in the order in which one would repair them."""
    away = False
    for look in LOOKS:
        if away and look in OF_ROWS:
            continue  # each would wait for the database as long as `database` did
        try:
            for finding in look():
                away = away or (finding.name, finding.state) == ("database", "failed")
                yield finding
        except DatabaseError:
            if look not in OF_ROWS:
                raise
            away = True


def python() -> Iterator[Finding]:
    """Look at the interpreter."""
    version = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        yield Finding("python", "failed", version, "Use Python 3.11 or newer.")
    else:
        yield Finding("python", "ok", version)


def folder() -> Iterator[Finding]:
    """Look at the folder for data and at the keys in it."""
    var = settings.BONOBOT_VAR
    if os.access(var, os.R_OK | os.W_OK | os.X_OK):
        free = shutil.disk_usage(var).free // 2**20
        yield Finding("folder", "ok", say("{var}, {free:,} MiB free", var=var, free=free))
    else:
        yield Finding(
            "folder", "failed", say("{var} isn't writable", var=var), f"Run `chown -R $USER {var}`."
        )
    if readable := [path for path, _ in open_key_files()]:
        paths = " ".join(map(str, readable))
        yield Finding(
            "keys",
            "failed",
            say("others can read {paths}", paths=paths),
            f"Run `chmod 600 {paths}`.",
        )
    else:
        yield Finding("keys", "ok", "readable by this user only")


def database() -> Iterator[Finding]:
    """Look at the database and its migrations."""
    begun = time.monotonic()
    try:
        pending = health.unapplied()
        version = ".".join(map(str, connection.get_database_version()))
    except DatabaseError as error:
        fix = "Start the database or correct `DATABASE_URL`."
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
        fix = "Use a Python with a newer SQLite, or PostgreSQL through `DATABASE_URL`."
        yield Finding("database", "failed", detail, fix)
    else:
        yield Finding("database", "ok", detail)
    if pending:
        fix = "Run `bonobot migrate`."
        yield Finding(
            "migrations", "failed", say("{pending} are not applied", pending=pending), fix
        )
    else:
        yield Finding("migrations", "ok", "all applied")


def secrets() -> Iterator[Finding]:
    """Look whether the keys open what is stored."""
    if unopened := list(readiness.unopened()):
        fix = (
            "Restore the keys they were made with: add them to `BONOBOT_FIELD_KEYS` "
            "(or, for tokens, to `BONOBOT_TOKEN_PEPPERS`), behind the first."
        )
        detail = say("made with other keys: {unopened}", unopened=", ".join(unopened))
        yield Finding("secrets", "failed", detail, fix)
    else:
        yield Finding("secrets", "ok", "the keys open what is stored")


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
        fix = "Let a time service (chrony, systemd-timesyncd) set the clocks of all hosts."
        yield Finding("clock", "failed", say("{apart:.1f} s from the database's", apart=apart), fix)
    else:
        yield Finding("clock", "ok", say("{apart:.2f} s from the database's", apart=apart))
    pool = settings.DATABASES["default"]["OPTIONS"]["pool"]["max_size"]
    detail = say("{allowed} allowed, {pool} for each process", allowed=allowed, pool=pool)
    if int(allowed) < PROCESSES * (pool + 1):
        fix = "Raise `max_connections` of PostgreSQL or lower `BONOBOT_DATABASE_POOL`."
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
        fix = "Set `maxmemory-policy noeviction`: what is lost waits for the next sweep."
        yield Finding(
            "redis", "warning", say("evicts ({policy}) when it is full", policy=policy), fix
        )
    else:
        yield Finding("redis", "ok", "evicts nothing")


def broker() -> Iterator[Finding]:
    """Look at the broker, through it at the workers, and through them at beat."""
    name = "Redis" if settings.REDIS_URL else f"the folder {settings.BONOBOT_VAR / 'broker'}"
    try:
        with app.connection_for_read() as link:
            link.ensure_connection(max_retries=1, timeout=PING_S)
            workers = Inspect(app=app, timeout=PING_S).stats() or {}
    except (OperationalError, OSError) as error:
        yield Finding("broker", "failed", f"{name}: {error}", "Start it or correct `REDIS_URL`.")
        return
    yield Finding("broker", "ok", name)
    if not workers:
        fix = "Start one: `bonobot up`, or `bonobot worker`."
        yield Finding("worker", "failed", "no worker answers", fix)
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
        return Finding("beat", "warning", "the workers have just started", "Look again soon.")
    return Finding("beat", "failed", say("no sweep in {uptime_s} s", uptime_s=uptime_s), START_BEAT)


def schedule() -> Iterator[Finding]:
    """Look at what beat wrote last, and at what is switched off."""
    rows = list(PeriodicTask.objects.select_related("interval"))
    beats = [row for row in rows if row.name == schedules.HEARTBEAT]
    age_s = readiness.beat_age_s(beats[0]) if beats else None
    if age_s is None:
        yield Finding("schedule", "warning", "beat has never run here", START_BEAT)
    else:
        late = age_s > readiness.beat_late_after_s(beats[0])
        detail = say("beat wrote {age_s:.0f} s ago", age_s=age_s)
        yield Finding("schedule", "failed" if late else "ok", detail, START_BEAT if late else "")
    if off := sorted(row.name for row in rows if not row.enabled):
        fix = "Switch them on in the admin, under Schedules, unless that is meant so."
        yield Finding("switched off", "warning", ", ".join(off), fix)


def watching() -> Iterator[Finding]:
    """Look whether the servers that tell what changes are listened to."""
    if not settings.BONOBOT_WATCHED_SERVERS:
        yield Finding("change notices", "ok", "nobody listens: `BONOBOT_WATCHED_SERVERS` is 0")
        return
    wanted, alone = listened_to().count(), unheld().count()
    if alone:
        fix = "Start a worker more, or raise `BONOBOT_WATCHED_SERVERS`."
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
            fix = "Until it answers, its tokens open nothing. Check its URL and the way there."
            yield Finding(f"issuer {row.name}", "failed", str(problem), fix)
        else:
            yield Finding(
                f"issuer {row.name}",
                "ok",
                say("keys that it publishes: {count}", count=len(ring.keys)),
            )


def packages() -> Iterator[Finding]:
    """Look for others that bring a package of our names: which files are there is then chance."""
    found = packages_distributions()
    for name in ("agents", "mcp_servers"):
        for other in sorted(set(found.get(name, ())) - {"bonobot"}):
            fix = f"Install Bonobot into an environment of its own, without {other}."
            yield Finding(
                "packages",
                "failed",
                say("{other} brings a package {name!r}, too", other=other, name=name),
                fix,
            )


def launchers() -> Iterator[Finding]:
    """Look for the programs that start stdio servers."""
    for name in ("npx", "uvx", "node"):
        path = shutil.which(name)
        if path:
            yield Finding(name, "ok", path)
        else:
            package = "uv" if name == "uvx" else "Node.js"
            fix = f"Install {package}, if servers from there are wanted."
            yield Finding(name, "warning", "isn't installed", fix)


def isolation() -> Iterator[Finding]:
    """Look for what keeps stdio servers apart from this machine."""
    way = containment()
    if way.name == NAMESPACE.name:
        yield Finding("isolation", "ok", way.promise)
        return
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if sys.platform != "linux":
        fix = "Run servers that you don't trust on Linux."
    elif missing:
        fix = f"Install the package `util-linux` ({' and '.join(missing)} are missing)."
    else:
        fix = "Allow this user, or this container, to make user namespaces."
    yield Finding("isolation", "warning", way.promise, fix)


def boxes() -> Iterator[Finding]:
    """Look whether the boxes work that stdio servers can be asked to run in."""
    for kind in BOXES:
        problem = fault(kind, "none")
        if problem is None:
            yield Finding(kind, "ok", "servers can be confined so, with and without network")
            continue
        asked = _asked_for(kind)
        detail = (
            say(
                "{problem}; {asked} servers ask for it and can't be started",
                problem=problem,
                asked=asked,
            )
            if asked
            else problem
        )
        yield Finding(kind, "failed" if asked else "warning", str(detail), problem.remedy)


def sandbox() -> Iterator[Finding]:
    """Look whether the sandbox works that agents' own commands run in."""
    problem = fault_of_sandbox()
    if problem is None:
        yield Finding("sandbox", "ok", "agents can be given a shell and git")
        return
    try:
        kits = Agent.objects.enabled().values_list("builtin_tools", flat=True)
        asked = sum(not SANDBOXED.isdisjoint(one) for one in kits)
    except DatabaseError:
        asked = 0  # which `database` tells
    detail = say(
        "{problem}; {asked} agents have a shell or git, and can't use them",
        problem=problem,
        asked=asked,
    )
    if asked:
        yield Finding("sandbox", "failed", detail, problem.remedy)
    else:
        yield Finding("sandbox", "warning", str(problem), problem.remedy)


def _asked_for(kind: str) -> int:
    try:
        return int(Server.objects.enabled().filter(confinement=kind).count())
    except DatabaseError:
        return 0  # which `database` tells


LOOKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    python,
    packages,
    folder,
    database,
    secrets,
    clock,
    broker,
    memory_of_redis,
    schedule,
    watching,
    issuers,
    launchers,
    isolation,
    boxes,
    sandbox,
)
OF_ROWS = (secrets, clock, schedule, watching, issuers)
