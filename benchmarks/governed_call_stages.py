"""What a governed call is made of: time by stage, and what it asks of others; for the benchmark.

Stages are timed by wrapping the functions that they consist of: the pipeline has no code for it. Times are processor time of the thread that runs the stage.
"""

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from django.db.backends.utils import CursorWrapper

from agents.calls import admit, inspect_result, pipeline, prepare_call, settle_call
from bonobot.core.runtime import Runtime
from bonobot.ledger.writer import committer
from bonobot.ledger.writer.queue import LoopWaiters
from bonobot.ledger.writer.sql import DedicatedLedgerDatabase
from bonobot.ledger.writer.writer_thread import LedgerWriter
from mcp_servers.schemas import subprocess_pool

# What is timed: stage, owner, function. A stage's own time is without the stages inside it.
STAGES: tuple[tuple[str, Any, str], ...] = (
    ("resolve", prepare_call, "find_target"),
    ("check the arguments", subprocess_pool, "check_value"),
    ("decide", pipeline, "decide_call"),
    ("open: names, budgets, rates", pipeline, "build_admission"),
    ("open: mask the arguments", admit, "build_audited_arguments"),
    ("seal the opening", LedgerWriter, "_build_admission"),
    ("scan the result", inspect_result, "_render_result"),
    ("cost", settle_call, "calculate_amounts"),
    ("seal the outcome", LedgerWriter, "_build_settlement"),
    ("writer: its thread", LedgerWriter, "_commit_batch"),
    ("writer: statements", committer, "_commit_items"),
)
COUNTED: tuple[tuple[str, Any, str], ...] = (
    ("ledger statements", DedicatedLedgerDatabase, "execute"),
    ("ledger statements of many rows", DedicatedLedgerDatabase, "execute_each"),
    ("ledger transactions", committer, "_commit_items"),
    ("other queries", CursorWrapper, "execute"),
    ("hops to an ORM thread", Runtime, "run_orm"),
    ("hops to another thread", asyncio, "to_thread"),
    ("hand-overs to the writer", LoopWaiters, "_submit_items"),
    ("turns of the loop's callbacks", asyncio.Handle, "_run"),
)


@dataclass
class Watched:
    """What was seen: each stage's own times in µs, and how often each counted thing happened."""

    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)

    def lines(self, number: int) -> Iterator[tuple[str, str, float]]:
        """Yield (kind, what, figure for each call): µs of stages, then counts."""
        for name, _owner, _function in STAGES:
            if found := self.times.get(name):
                yield "stage", name, median(found) * len(found) / number
        for name, _owner, _function in COUNTED:
            yield "count", name, self.counts[name] / number


@contextmanager
def timed() -> Iterator[Watched]:
    """Time the stages of what runs inside."""
    watched = Watched()
    inside: dict[int, list[float]] = {}
    with _wrapped(STAGES, lambda name, run: _timing(watched, inside, name, run)):
        yield watched


@contextmanager
def counted() -> Iterator[Watched]:
    """Count what is asked of databases, threads and the loop inside."""
    watched = Watched()
    with _wrapped(COUNTED, lambda name, run: _counting(watched, name, run)):
        yield watched


def _timing(
    watched: Watched, inside: dict[int, list[float]], name: str, run: Callable[..., Any]
) -> Callable[..., Any]:
    def timing(*args: Any, **kwargs: Any) -> Any:
        children = inside.setdefault(threading.get_ident(), [])
        outer, children[:] = [*children], []
        began = time.thread_time_ns()
        try:
            return run(*args, **kwargs)
        finally:
            took = (time.thread_time_ns() - began) / 1000
            watched.times[name].append(took - sum(children))
            children[:] = [*outer, took]

    return timing


def _counting(watched: Watched, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    def counting(*args: Any, **kwargs: Any) -> Any:
        # To write no rows asks nothing of anybody.
        watched.counts[name] += run.__name__ != "execute_each" or bool(args[2])
        return run(*args, **kwargs)

    return counting


@contextmanager
def _wrapped(
    places: tuple[tuple[str, Any, str], ...],
    wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]],
) -> Iterator[None]:
    before = [(owner, function, getattr(owner, function)) for _name, owner, function in places]
    for (name, owner, function), (_, _, run) in zip(places, before, strict=True):
        setattr(owner, function, wrap(name, run))
    try:
        yield
    finally:
        for owner, function, run in before:
            setattr(owner, function, run)
