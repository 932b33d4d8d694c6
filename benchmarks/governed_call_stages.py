"""Measure the stages of a governed call, and count its database statements and thread switches.

The functions of each stage are wrapped here, so the product has no code for measurements. Times are
processor time of the thread that runs the stage.
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

# Timed functions: stage, owner, name. The time of a stage excludes the stages within it.
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
COUNTED_OPERATIONS: tuple[tuple[str, Any, str], ...] = (
    ("ledger statements", DedicatedLedgerDatabase, "execute"),
    ("ledger statements of many rows", DedicatedLedgerDatabase, "execute_each"),
    ("ledger transactions", committer, "_commit_items"),
    ("other queries", CursorWrapper, "execute"),
    ("hops to an ORM thread", Runtime, "run_orm"),
    ("hops to another thread", asyncio, "to_thread"),
    ("items sent to the writer", LoopWaiters, "_submit_items"),
    ("turns of the loop's callbacks", asyncio.Handle, "_run"),
)


@dataclass
class StageMeasurements:
    """The own times of each stage in µs, and how often each operation was called."""

    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)

    def lines(self, number: int) -> Iterator[tuple[str, str, float]]:
        """Yield kind, name, and value per call: the µs of stages, then the counts of operations."""
        for name, _owner, _function in STAGES:
            if results := self.times.get(name):
                yield "stage", name, median(results) * len(results) / number
        for name, _owner, _function in COUNTED_OPERATIONS:
            yield "count", name, self.counts[name] / number


@contextmanager
def time_stages() -> Iterator[StageMeasurements]:
    """Time the stages of the calls within the block."""
    watched = StageMeasurements()
    inside: dict[int, list[float]] = {}
    with _wrap_functions(STAGES, lambda name, run: _add_timer(watched, inside, name, run)):
        yield watched


@contextmanager
def count_operations() -> Iterator[StageMeasurements]:
    """Count the operations on databases, threads, and the loop within the block."""
    watched = StageMeasurements()
    with _wrap_functions(COUNTED_OPERATIONS, lambda name, run: _add_counter(watched, name, run)):
        yield watched


def _add_timer(
    watched: StageMeasurements, inside: dict[int, list[float]], name: str, run: Callable[..., Any]
) -> Callable[..., Any]:
    def timing(*args: Any, **kwargs: Any) -> Any:
        children = inside.setdefault(threading.get_ident(), [])
        outer, children[:] = [*children], []
        started_at = time.thread_time_ns()
        try:
            return run(*args, **kwargs)
        finally:
            elapsed = (time.thread_time_ns() - started_at) / 1000
            watched.times[name].append(elapsed - sum(children))
            children[:] = [*outer, elapsed]

    return timing


def _add_counter(
    watched: StageMeasurements, name: str, run: Callable[..., Any]
) -> Callable[..., Any]:
    def counting(*args: Any, **kwargs: Any) -> Any:
        # Writing no rows sends no statement.
        watched.counts[name] += run.__name__ != "execute_each" or bool(args[2])
        return run(*args, **kwargs)

    return counting


@contextmanager
def _wrap_functions(
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
