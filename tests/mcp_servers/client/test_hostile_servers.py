"""Hostile servers: each call ends in time, within memory, and disturbs nobody; the error says why.

`hostile_cases.py` lists them, `measure_hostile_servers.py` meets them in one process of its own and
measures. The bounds are those of safety, not of speed: where the machine itself keeps us waiting,
the loop's hold is judged by the processor time that it took.
"""

import json
import subprocess
import sys
from functools import cache

import pytest

from tests.mcp_servers.client.hostile_cases import CASES, Case
from tests.mcp_servers.client.measure_hostile_servers import Measured
from tests.parts import ROOT

LATE_S = 2.0
MEMORY_MIB = 64
HELD_MS = 250
CALM_MS = 30  # what a machine that has time for us delays a thread at most
ALL_S = 300


@cache
def table() -> dict[str, Measured]:
    """Meet all cases once; the process prints what it measured as it goes."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.mcp_servers.client.measure_hostile_servers"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=ALL_S,
        check=False,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr[-3_000:]
    return {row["name"]: Measured(**row) for row in rows}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_hostile_server_doesnt_affect_others(case: Case):
    measured, control = table()[case.name], table()["control"]
    assert measured.code in case.codes, measured
    assert case.told in measured.text + measured.notices
    if measured.code:
        assert "`a server`" in measured.text
    assert measured.took_s <= measured.deadline_s + LATE_S
    assert measured.memory_mib <= MEMORY_MIB
    assert measured.held_cpu_ms <= HELD_MS
    if measured.delayed_ms < CALM_MS:
        assert measured.held_ms <= HELD_MS
        assert measured.neighbour_median_ms <= 2 * control.neighbour_ms + HELD_MS
    if measured.took_s >= 0.3:
        assert measured.neighbour_calls >= 1


def test_a_blocked_event_loop_is_detected():
    """What is measured can fail: a case that computes on the loop is held, and needs memory."""
    proof = table()["proof"]
    assert proof.held_cpu_ms > HELD_MS
    assert proof.memory_mib > MEMORY_MIB
