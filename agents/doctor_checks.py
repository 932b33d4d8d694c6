"""Checks of an installation: configuration, services and host.

Used by `bonobot doctor` and the settings check of the admin.
"""

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

from celery import current_app
from celery.app.control import Inspect
from django.conf import settings
from django.db import DatabaseError, connection
from django.utils import timezone
from django_celery_beat.models import PeriodicTask
from kombu.exceptions import OperationalError

from agents.builtin_tools.command_sandbox import find_sandbox_fault as fault_of_sandbox
from agents.builtin_tools.toolset_options import SANDBOXED_TOOLSETS
from agents.models import Agent
from bonobot.accounts.external_issuers.jwks import IssuerAddress, IssuerUnreachable, get_jwks_cache
from bonobot.accounts.models import AccountEmail, Issuer, Organization
from bonobot.core.crypto.key_files import list_exposed_key_files
from bonobot.core.db.database_url import MIN_SQLITE_VERSION
from bonobot.core.i18n.messages import format_message
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from bonobot.jobs import schedules
from bonobot.jobs.models import Lease
from bonobot.monitoring import database_state, health_endpoints
from bonobot.processes.process_status import read_statuses
from mcp_servers.client.child_process import CONTAINMENT_TOOLS, NAMESPACE, choose_containment
from mcp_servers.client.environment_rules import list_variables_needing_exception
from mcp_servers.client.sandbox import Kind, find_sandbox_problem
from mcp_servers.client.sandbox import find_sandbox_fault as fault_of_server_sandbox
from mcp_servers.client.seccomp_filter import can_filter_modes
from mcp_servers.models import Secret, Server
from mcp_servers.presets.allowed_folders import build_folder_rule
from mcp_servers.subscriptions.leases import (
    query_unclaimed_subscriptions,
    query_wanted_subscriptions,
)

State = Literal["ok", "warning", "failed"]
PING_S = 1
SWEEP_TASK = "agents.tasks.sweep"
SWEEP_EVERY_S = 10
MAX_CLOCK_SKEW_S = 2.0
# The fewest processes that share a database: two web, two workers and the scheduler.
MIN_PROCESSES = 5
START_SCHEDULER = format_message(
    "Start a scheduler with `bonobot up` or `bonobot beat`. A second scheduler stays on standby."
)
OLDEST_PYTHON = (3, 11)
STDIO_SANDBOX = "stdio sandbox"
SANDBOX_KINDS: tuple[Kind, ...] = ("namespaces", "bubblewrap")


@dataclass(frozen=True)
class SettingsFinding:
    """The result of one check."""

    name: str
    state: State
    detail: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the finding for JSON."""
        return asdict(self)


def inspect_database() -> Iterator[SettingsFinding]:
    """Check the database and its migrations."""
    started_at = time.monotonic()
    try:
        pending = database_state.count_unapplied_migrations()
        version = ".".join(map(str, connection.get_database_version()))
    except DatabaseError as error:
        fix = format_message("Start the database or correct `DATABASE_URL`.")
        reason = database_state.explain_database_error(error)
        yield SettingsFinding("database", "failed", f"{connection.display_name}: {reason}", fix)
        return
    took_ms = (time.monotonic() - started_at) * 1000
    detail = format_message(
        "{display_name} {version}, responded in {duration_ms:.0f} ms",
        display_name=connection.display_name,
        version=version,
        duration_ms=took_ms,
    )
    if connection.vendor == "sqlite" and sqlite3.sqlite_version_info < MIN_SQLITE_VERSION:
        fix = format_message(
            "Use a Python version with a newer SQLite, or use PostgreSQL through `DATABASE_URL`."
        )
        yield SettingsFinding("database", "failed", detail, fix)
    else:
        yield SettingsFinding("database", "ok", detail)
    if pending:
        fix = format_message("Run `bonobot migrate`.")
        yield SettingsFinding(
            "migrations",
            "failed",
            format_message("{pending} aren't applied", pending=pending),
            fix,
        )
    else:
        yield SettingsFinding("migrations", "ok", format_message("all applied"))


def inspect_secrets() -> Iterator[SettingsFinding]:
    """Check that the keys decrypt the stored secrets."""
    if unreadable_fields := list(health_endpoints.list_unreadable_fields()):
        fix = format_message(
            "Restore the keys that encrypted them: add them to `BONOBOT_FIELD_KEYS` (or, "
            "for tokens, to `BONOBOT_TOKEN_PEPPERS`), after the first key."
        )
        detail = format_message(
            "encrypted with other keys: {names}", names=", ".join(unreadable_fields)
        )
        yield SettingsFinding("secrets", "failed", detail, fix)
    else:
        yield SettingsFinding(
            "secrets", "ok", format_message("all stored secrets can be decrypted")
        )


def inspect_clock() -> Iterator[SettingsFinding]:
    """Check the clock against the database, which leases depend on, and the pool size."""
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        started_at = time.time()
        cursor.execute(
            "SELECT extract(epoch FROM clock_timestamp()), current_setting('max_connections')"
        )
        database_time, max_connections = cursor.fetchone()
    skew_s = abs(float(database_time) - (started_at + time.time()) / 2)
    if skew_s > MAX_CLOCK_SKEW_S:
        fix = format_message(
            "Use a time service (chrony, systemd-timesyncd) to set the clocks of all hosts."
        )
        yield SettingsFinding(
            "clock",
            "failed",
            format_message("differs from the database clock by {seconds:.1f} s", seconds=skew_s),
            fix,
        )
    else:
        yield SettingsFinding(
            "clock",
            "ok",
            format_message("differs from the database clock by {seconds:.2f} s", seconds=skew_s),
        )
    pool = settings.DATABASES["default"]["OPTIONS"]["pool"]["max_size"]
    detail = format_message(
        "{allowed} allowed, {pool} per process", allowed=max_connections, pool=pool
    )
    if int(max_connections) < MIN_PROCESSES * (pool + 1):
        fix = format_message(
            "Raise `max_connections` of PostgreSQL or lower `BONOBOT_DATABASE_POOL`."
        )
        yield SettingsFinding("connections", "warning", detail, fix)
    else:
        yield SettingsFinding("connections", "ok", detail)


def inspect_redis_memory() -> Iterator[SettingsFinding]:
    """Check that Redis doesn't evict messages when its memory is full."""
    if not settings.REDIS_URL:
        return
    from redis import Redis
    from redis.exceptions import RedisError

    try:
        with Redis.from_url(settings.REDIS_URL, socket_connect_timeout=PING_S) as client:
            memory_info: Any = client.info("memory")
    except RedisError:
        return  # reported by `broker`
    policy = memory_info.get("maxmemory_policy", "noeviction")
    if memory_info.get("maxmemory") and policy != "noeviction":
        fix = format_message(
            "Set `maxmemory-policy noeviction`. Work lost to eviction waits for the next sweep."
        )
        yield SettingsFinding(
            "redis",
            "warning",
            format_message("evicts data when full ({policy})", policy=policy),
            fix,
        )
    else:
        yield SettingsFinding("redis", "ok", format_message("doesn't evict data"))


def inspect_broker() -> Iterator[SettingsFinding]:
    """Check the broker, the workers and the scheduler."""
    folder = settings.BONOBOT_VAR / "broker"
    name = "Redis" if settings.REDIS_URL else format_message("the folder {folder}", folder=folder)
    try:
        with current_app.connection_for_read() as broker_connection:
            broker_connection.ensure_connection(max_retries=1, timeout=PING_S)
            workers = Inspect(app=current_app, timeout=PING_S).stats() or {}
    except (OperationalError, OSError) as error:
        yield SettingsFinding(
            "broker",
            "failed",
            f"{name}: {error}",
            format_message("Start it or correct `REDIS_URL`."),
        )
        return
    yield SettingsFinding("broker", "ok", name)
    if not workers:
        fix = format_message("Start a worker with `bonobot up` or `bonobot worker`.")
        yield SettingsFinding("worker", "failed", format_message("no worker responds"), fix)
        return
    yield SettingsFinding("worker", "ok", ", ".join(sorted(workers)))
    yield inspect_scheduler(workers.values())


def inspect_scheduler(workers: Collection[Mapping[str, Any]]) -> SettingsFinding:
    """Check that the scheduled sweep reaches the workers."""
    uptime_s = max(worker["uptime"] for worker in workers)
    sweeps = sum(worker["total"].get(SWEEP_TASK, 0) for worker in workers)
    if sweeps:
        return SettingsFinding(
            "beat",
            "ok",
            format_message(
                "sweeps in the last {uptime_s} s: {sweeps}", uptime_s=uptime_s, sweeps=sweeps
            ),
        )
    if uptime_s < 2 * SWEEP_EVERY_S:
        reason, fix = (
            format_message("the workers have just started"),
            format_message("Check again shortly."),
        )
        return SettingsFinding("beat", "warning", reason, fix)
    return SettingsFinding(
        "beat",
        "failed",
        format_message("no sweep in {uptime_s} s", uptime_s=uptime_s),
        START_SCHEDULER,
    )


def inspect_supervised_processes() -> Iterator[SettingsFinding]:
    """Check the processes of `bonobot up` on this host, if it runs here."""
    for process in read_statuses(settings.BONOBOT_VAR):
        if process.state == "stopped":
            yield SettingsFinding(
                process.name,
                "failed",
                format_message(
                    "`bonobot up` stopped restarting it: it ended too often ({last_end})",
                    last_end=process.last_end,
                ),
                format_message("See the output of `bonobot up` for the cause, then restart it."),
            )
        elif process.last_end:
            yield SettingsFinding(
                process.name,
                "warning",
                format_message(
                    "restarted {restarts} times by `bonobot up`; last end: {last_end}",
                    restarts=process.restarts,
                    last_end=process.last_end,
                ),
                format_message("See the output of `bonobot up` for the cause."),
            )


def inspect_schedule() -> Iterator[SettingsFinding]:
    """Check the heartbeat of the scheduler and the disabled schedules."""
    rows = list(PeriodicTask.objects.select_related("interval"))
    beats = [row for row in rows if row.name == schedules.HEARTBEAT]
    age_s = health_endpoints.compute_beat_age_s(beats[0]) if beats else None
    if age_s is None and Lease.objects.filter(name="beat", expires_at__gt=timezone.now()).exists():
        detail = format_message("the scheduler has just started")
        yield SettingsFinding("schedule", "ok", detail)
    elif age_s is None:
        yield SettingsFinding(
            "schedule", "warning", format_message("the scheduler has never run"), START_SCHEDULER
        )
    else:
        is_late = age_s > health_endpoints.compute_beat_deadline_s(beats[0])
        detail = format_message("last scheduler update {age_s:.0f} s ago", age_s=age_s)
        yield SettingsFinding(
            "schedule", "failed" if is_late else "ok", detail, START_SCHEDULER if is_late else ""
        )
    if disabled_names := sorted(row.name for row in rows if not row.enabled):
        fix = format_message("If this isn't intended, enable them in the admin under Schedules.")
        yield SettingsFinding("disabled", "warning", ", ".join(disabled_names), fix)


def inspect_change_listeners() -> Iterator[SettingsFinding]:
    """Check that a worker listens to each server that sends change notifications."""
    if not settings.BONOBOT_WATCHED_SERVERS:
        detail = format_message("not listening: `BONOBOT_WATCHED_SERVERS` is 0")
        yield SettingsFinding("change notices", "ok", detail)
        return
    wanted_count, unclaimed_count = (
        query_wanted_subscriptions().count(),
        query_unclaimed_subscriptions().count(),
    )
    if unclaimed_count:
        fix = format_message("Start another worker, or raise `BONOBOT_WATCHED_SERVERS`.")
        yield SettingsFinding(
            "change notices",
            "warning",
            format_message(
                "not listening to {count} of {total} servers",
                count=unclaimed_count,
                total=wanted_count,
            ),
            fix,
        )
    else:
        yield SettingsFinding(
            "change notices",
            "ok",
            format_message("listening to {count} servers", count=wanted_count),
        )


def inspect_account_emails() -> Iterator[SettingsFinding]:
    """Check that emails to people about their accounts are delivered."""
    undelivered = AccountEmail.objects.undelivered()
    latest = undelivered.order_by("-created_at").first()
    if latest is None:
        yield SettingsFinding("account emails", "ok", format_message("none undelivered"))
        return
    detail = format_message(
        "{count} not delivered, {failed} of them finally: {error}",
        count=undelivered.count(),
        failed=undelivered.given_up().count(),
        error=latest.error,
    )
    fix = format_message("Check `BONOBOT_EMAIL_URL` and the mail server. Bonobot tries for a week.")
    yield SettingsFinding("account emails", "warning", detail, fix)


def inspect_external_issuers() -> Iterator[SettingsFinding]:
    """Check that external issuers publish their keys."""
    for row in Issuer.objects.enabled().order_by("name"):
        try:
            key_set = get_runtime().call(
                get_jwks_cache().fetch_keys, IssuerAddress(row.url, row.allow_private)
            )
        except IssuerUnreachable as problem:
            fix = format_message(
                "Tokens from this issuer are rejected until it responds. Check its URL and "
                "the network connection."
            )
            yield SettingsFinding(f"issuer {row.name}", "failed", str(problem), fix)
        else:
            yield SettingsFinding(
                f"issuer {row.name}",
                "ok",
                format_message("published keys: {count}", count=len(key_set.keys)),
            )


def inspect_python() -> Iterator[SettingsFinding]:
    """Check the Python version."""
    version = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        yield SettingsFinding(
            "python", "failed", version, format_message("Use Python 3.11 or newer.")
        )
    else:
        yield SettingsFinding("python", "ok", version)


def inspect_packages() -> Iterator[SettingsFinding]:
    """Check for other distributions with packages of the same names, which overwrite ours."""
    distributions = packages_distributions()
    for name in ("agents", "mcp_servers"):
        for distribution in sorted(set(distributions.get(name, ())) - {"bonobot"}):
            fix = format_message(
                "Install Bonobot in a separate environment, without {other}.",
                other=distribution,
            )
            yield SettingsFinding(
                "packages",
                "failed",
                format_message(
                    "{other} also installs a package {name!r}", other=distribution, name=name
                ),
                fix,
            )


def inspect_data_folder() -> Iterator[SettingsFinding]:
    """Check the data folder and its key files."""
    var = settings.BONOBOT_VAR
    if os.access(var, os.R_OK | os.W_OK | os.X_OK):
        free_mib = shutil.disk_usage(var).free // 2**20
        yield SettingsFinding(
            "folder", "ok", format_message("{var}, {free:,} MiB free", var=var, free=free_mib)
        )
    else:
        yield SettingsFinding(
            "folder",
            "failed",
            format_message("{var} isn't writable", var=var),
            format_message("Run `chown -R $USER {var}`.", var=var),
        )
    if exposed_files := [path for path, _ in list_exposed_key_files(settings.BONOBOT_VAR / "keys")]:
        paths = " ".join(map(str, exposed_files))
        yield SettingsFinding(
            "keys",
            "failed",
            format_message("other users can read {paths}", paths=paths),
            format_message("Run `chmod 600 {paths}`.", paths=paths),
        )
    else:
        yield SettingsFinding("keys", "ok", format_message("readable only by this user"))


def inspect_launchers() -> Iterator[SettingsFinding]:
    """Check the programs that start stdio servers."""
    for name in ("npx", "uvx", "node"):
        path = shutil.which(name)
        if path:
            yield SettingsFinding(name, "ok", path)
        else:
            package = "uv" if name == "uvx" else "Node.js"
            fix = format_message(
                "Install {package} if you want to run servers that need it.", package=package
            )
            yield SettingsFinding(name, "warning", format_message("isn't installed"), fix)


def inspect_process_isolation() -> Iterator[SettingsFinding]:
    """Check the process isolation of stdio servers."""
    containment = choose_containment()
    if containment.name == NAMESPACE.name:
        yield SettingsFinding("isolation", "ok", containment.guarantee)
        return
    missing_tools = [tool for tool in CONTAINMENT_TOOLS if shutil.which(tool) is None]
    if sys.platform != "linux":
        fix = format_message("Run untrusted servers on Linux.")
    elif missing_tools:
        names = ", ".join(missing_tools)
        fix = format_message("Install the package `util-linux`. Missing: {names}.", names=names)
    else:
        fix = format_message("Allow this user or container to create user namespaces.")
    yield SettingsFinding("isolation", "warning", containment.guarantee, fix)


def inspect_server_sandboxes() -> Iterator[SettingsFinding]:
    """Check the sandboxes that stdio servers can be configured to run in."""
    for kind in SANDBOX_KINDS:
        problem = find_sandbox_problem(kind, "none")
        if problem is None:
            yield SettingsFinding(
                kind, "ok", format_message("available for servers, with and without network access")
            )
            continue
        server_count = _count_sandboxed_servers(kind)
        detail = (
            format_message(
                "{problem}; servers that require it and can't start: {count}",
                problem=problem,
                count=server_count,
            )
            if server_count
            else problem
        )
        yield SettingsFinding(
            kind, "failed" if server_count else "warning", str(detail), problem.remedy
        )


def inspect_stdio_sandbox() -> Iterator[SettingsFinding]:
    """Check the sandbox of organizations' stdio servers."""
    problem = fault_of_server_sandbox()
    if problem is None and not can_filter_modes():
        yield SettingsFinding(
            STDIO_SANDBOX,
            "warning",
            format_message(
                "stdio servers run in a sandbox of their organization, but on this CPU they can "
                "create set-user-ID files in folders that they share with the host"
            ),
            format_message("Mount the folders in `BONOBOT_PRESET_FOLDERS` with `nosuid`."),
        )
        return
    if problem is None:
        yield SettingsFinding(
            STDIO_SANDBOX,
            "ok",
            format_message("stdio servers run in a sandbox of their organization"),
        )
        return
    try:
        has_several_organizations = Organization.objects.count() > 1
    except DatabaseError:
        has_several_organizations = True  # which `database` tells
    if has_several_organizations:
        server_count = _count_sandboxed_servers(Server.SandboxMode.SANDBOX)
        detail = format_message(
            "{problem}; stdio servers that can't start: {count}",
            problem=problem,
            count=server_count,
        )
        yield SettingsFinding(
            STDIO_SANDBOX, "failed" if server_count else "warning", detail, problem.remedy
        )
    else:
        detail = format_message(
            "{problem}; stdio servers run as this user as long as there is only one organization",
            problem=problem,
        )
        yield SettingsFinding(STDIO_SANDBOX, "warning", detail, problem.remedy)


def inspect_stdio_configuration() -> Iterator[SettingsFinding]:
    """Find stdio servers with a forbidden configuration, which are not started."""
    try:
        for server in Server.objects.enabled().filter(transport_type=Server.Transport.STDIO):
            if refusal := _describe_refusal(server):
                yield SettingsFinding(
                    "stdio configuration",
                    "failed",
                    format_message(
                        "the server `{server}` isn't started: {refusal}",
                        server=make_visible(server.name, 100),
                        refusal=refusal,
                    ),
                    format_message(
                        "Correct its configuration, or allow the variable as an exception."
                    ),
                )
    except DatabaseError:
        return  # which `database` tells


def _describe_refusal(server: Server) -> str:
    """Return why a stdio server's stored configuration is refused, or ""."""
    secrets = server.secrets.filter(placement=Secret.Placement.ENV)
    names = secrets.values_list("name", flat=True)
    if refused_names := list_variables_needing_exception(names, server.env_exceptions):
        return format_message("`{names}` can't be set", names=", ".join(refused_names))
    folder = server.endpoint_config.get("cwd")
    if folder and (reason := build_folder_rule(server.organization_id).find_refusal(folder)):
        return format_message("its folder can't be used because {why}", why=reason)
    return ""


def inspect_command_sandbox() -> Iterator[SettingsFinding]:
    """Check the sandbox of agents' commands."""
    problem = fault_of_sandbox()
    if problem is None:
        yield SettingsFinding(
            "sandbox", "ok", format_message("available for agents with a shell or git")
        )
        return
    try:
        enabled_toolsets = Agent.objects.enabled().values_list("builtin_tools", flat=True)
        agent_count = sum(not SANDBOXED_TOOLSETS.isdisjoint(names) for names in enabled_toolsets)
    except DatabaseError:
        agent_count = 0  # which `database` tells
    detail = format_message(
        "{problem}; agents that can't use their shell or git: {count}",
        problem=problem,
        count=agent_count,
    )
    if agent_count:
        yield SettingsFinding("sandbox", "failed", detail, problem.remedy)
    else:
        yield SettingsFinding("sandbox", "warning", str(problem), problem.remedy)


def _count_sandboxed_servers(kind: str) -> int:
    try:
        return int(Server.objects.enabled().filter(sandbox=kind).count())
    except DatabaseError:
        return 0  # which `database` tells


INSPECTIONS: tuple[Callable[[], Iterator[SettingsFinding]], ...] = (
    inspect_python,
    inspect_packages,
    inspect_data_folder,
    inspect_database,
    inspect_secrets,
    inspect_clock,
    inspect_broker,
    inspect_redis_memory,
    inspect_supervised_processes,
    inspect_schedule,
    inspect_change_listeners,
    inspect_account_emails,
    inspect_external_issuers,
    inspect_launchers,
    inspect_process_isolation,
    inspect_stdio_sandbox,
    inspect_stdio_configuration,
    inspect_server_sandboxes,
    inspect_command_sandbox,
)
DATABASE_INSPECTIONS = (
    inspect_secrets,
    inspect_clock,
    inspect_schedule,
    inspect_change_listeners,
    inspect_account_emails,
    inspect_external_issuers,
)


def run_settings_checks() -> Iterator[SettingsFinding]:
    """Yield the findings, in the order to fix them."""
    is_database_down = False
    for inspect in INSPECTIONS:
        if is_database_down and inspect in DATABASE_INSPECTIONS:
            continue  # would wait for the unreachable database again
        try:
            for finding in inspect():
                is_database_down = is_database_down or (finding.name, finding.state) == (
                    "database",
                    "failed",
                )
                yield finding
        except DatabaseError:
            if inspect not in DATABASE_INSPECTIONS:
                raise
            is_database_down = True
