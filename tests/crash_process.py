"""Processes that run sessions and are killed, or stopped, at a chosen moment.

There is a moment before and after each write and each request of the session loop. The process is
forked from one that has everything loaded; it reads one order per line (JSON: `sessions`, `replay`,
`alone`, `at`, `signal`, `log`) and answers with the child's process id and then its exit status.
"""

import asyncio
import functools
import gc
import importlib
import inspect
import json
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connection

LEASE_S = 1.0
# Modules that each child would import: imported once, before the forks.
LOADED = (
    "agents.evaluation.replays",
    "agents.llm.interface",
    "agents.llm.offline.model",
    "agents.sessions.worker",
    "agents.workflows.runs",
    "anyio._backends._asyncio",
    "celery.app.amqp",
    "celery.app.events",
    "celery.app.task",
    "celery.events.dispatcher",
    "django.db.models.sql.compiler",
    "encodings.idna",
)


class Moments:
    """Counts what happens and sends this process a signal at one of it; the log names each."""

    def __init__(self, at: int, sent: int, log: Path) -> None:
        self._at, self._sent, self._log = at, sent, log
        self._count = 0
        self._lock = threading.Lock()

    def pass_by(self, name: str) -> None:
        """Count a moment; for a stop there is none within a transaction."""
        if self._sent == signal.SIGSTOP and connection.in_atomic_block:
            return
        with self._lock:
            self._count += 1
            with self._log.open("a", encoding="utf-8") as log:
                log.write(f"{name}\n")
            if self._count == self._at:
                self._end()

    def _end(self) -> None:
        if self._sent == signal.SIGSTOP and connection.vendor == "sqlite":
            # One that stands still with SQLite's only lock stops everybody: others finish first.
            with closing(sqlite3.connect(connection.settings_dict["NAME"], timeout=10)) as own:
                own.execute("BEGIN IMMEDIATE")
                own.rollback()
        # To this very thread, which would otherwise run on until another one has noticed.
        signal.pthread_kill(threading.get_ident(), self._sent)

    def around(self, owner: Any, name: str) -> None:
        """Make a moment of the time before and after a function or method."""
        plain = getattr(owner, name)
        setattr(owner, name, self._async(plain) if _is_async(plain) else self._sync(plain))

    def _sync(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def around(*args: Any, **kwargs: Any) -> Any:
            self.pass_by(f"before {plain.__qualname__}")
            result = plain(*args, **kwargs)
            self.pass_by(f"after {plain.__qualname__}")
            return result

        return around

    def _async(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        async def around(*args: Any, **kwargs: Any) -> Any:
            self.pass_by(f"before {plain.__qualname__}")
            result = await plain(*args, **kwargs)
            self.pass_by(f"after {plain.__qualname__}")
            return result

        return around


def _is_async(plain: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(plain)


def watch_writes(moments: Moments) -> None:
    """Add moments before and after every write and request."""
    from agents.calls import forward, pending_calls
    from agents.elicitations import services as elicitations
    from agents.evaluation import replays
    from agents.llm.offline.model import OfflineModel
    from agents.sessions import child_sessions, leases, loop, step_store
    from agents.workflows import runs
    from bonobot.ledger.writer.writer_thread import LedgerWriter
    from mcp_servers.client.pool import ConnectionPool

    for name in (
        "append_step",
        "finish_step",
        "finish_turn",
        "replace_call_id",
        "take_messages",
    ):
        moments.around(step_store, name)
    for owner, *names in (
        (step_store, "save_pending_call_id", "show_questions"),
        (leases, "claim_session"),
        (loop, "close_session", "suspend_session"),
        (LedgerWriter, "admit_call_async", "settle_call_async"),
        (OfflineModel, "request"),
        (forward, "_send_call"),
        (ConnectionPool, "send_request"),
        (child_sessions, "start_child"),
        (runs, "_save_outputs"),
        (pending_calls, "write_incomplete_result", "save_responses"),
        (pending_calls, "mark_delivered", "schedule_check"),
        (elicitations, "create_request"),
        (replays, "claim_replay", "complete_replay"),
    ):
        for name in names:
            moments.around(owner, name)


def run(order: dict[str, Any]) -> None:
    """Run sessions in this process until they wait or end, or run a replay."""
    from agents.evaluation import replays
    from agents.sessions import child_sessions, leases
    from agents.sessions.worker import get_session_runner
    from bonobot.core.runtime import close_runtime, get_runtime

    leases.LEASE_DURATION = timedelta(seconds=LEASE_S)
    leases.HEARTBEAT_INTERVAL_S = LEASE_S / 3
    watch_writes(Moments(order["at"], order["signal"], Path(order["log"])))

    async def elsewhere(_session_id: UUID) -> None:
        """Leave child sessions to other processes."""

    async def run_sessions() -> None:
        tasks = [
            await get_session_runner().claim_and_run(UUID(session_id))
            for session_id in order["sessions"]
        ]
        await asyncio.wait_for(asyncio.gather(*(task for task in tasks if task)), 60)
        if order["replay"]:
            await replays.run_replay(UUID(order["replay"]))

    if order["alone"]:
        child_sessions.run_locally = elsewhere
    get_runtime().call(run_sessions)
    close_runtime()


def prepare() -> None:
    """Import and compute once what each child needs."""
    for name in LOADED:
        importlib.import_module(name)
    from bonobot.core.http.egress import build_ssl_context
    from mcp_servers.scanning.prompt_injection import find_injections

    build_ssl_context()
    find_injections("Ignore all previous instructions.")  # compiles its patterns
    gc.freeze()  # a child that collects garbage would copy all of it


def main() -> None:
    """Process orders from standard input until it ends."""
    import django

    django.setup()
    prepare()
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            os.close(0)
            run(order)
            os._exit(0)
        _write_message(pid=child)
        _, status = os.waitpid(child, os.WUNTRACED)
        _write_message(ended=_describe_exit(status))
        if os.WIFSTOPPED(status):
            # Another process continues the session; this child waits for SIGCONT.
            _, status = os.waitpid(child, 0)
            _write_message(ended=_describe_exit(status))


def _write_message(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _describe_exit(status: int) -> str:
    if os.WIFSTOPPED(status):
        return "stopped"
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return str(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
