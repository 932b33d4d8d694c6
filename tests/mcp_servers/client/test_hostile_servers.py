"""Calls to hostile servers end in time, within memory limits, and don't affect others.

`hostile_cases.py` lists the servers, `measure_hostile_servers.py` calls them in its own process and
measures. The limits are for safety, not speed: if the machine itself is busy, blocking of the loop
is measured in CPU time.
"""

import json
import subprocess
import sys
from functools import cache

import pytest

from tests.mcp_servers.client.hostile_cases import CASES, Case
from tests.mcp_servers.client.measure_hostile_servers import Measurement
from tests.parts import ROOT

pytestmark = pytest.mark.whole

LATE_S = 2.0
MEMORY_MIB = 64
BLOCKED_MS = 250
CALM_MS = 30  # the longest thread delay of a machine that isn't busy
ALL_S = 300


@cache
def load_measurements() -> dict[str, Measurement]:
    """Run all cases once, in a process that prints its measurements."""
    completed = subprocess.run(
        [sys.executable, "-m", "tests.mcp_servers.client.measure_hostile_servers"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=ALL_S,
        check=False,
    )
    rows = [json.loads(line) for line in completed.stdout.splitlines()]
    assert completed.returncode == 0, completed.stderr[-3_000:]
    return {row["name"]: Measurement(**row) for row in rows}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_hostile_server_doesnt_affect_others(case: Case):
    measurement, control = load_measurements()[case.name], load_measurements()["control"]
    assert measurement.code in case.codes, measurement
    assert case.expected_text in measurement.text + measurement.notices
    if measurement.code:
        assert "`a server`" in measurement.text
    assert measurement.took_s <= measurement.deadline_s + LATE_S
    assert measurement.memory_mib <= MEMORY_MIB
    assert measurement.blocked_cpu_ms <= BLOCKED_MS
    if measurement.delayed_ms < CALM_MS:
        assert measurement.blocked_ms <= BLOCKED_MS
        assert measurement.neighbor_median_ms <= 2 * control.neighbor_ms + BLOCKED_MS
    if measurement.took_s >= 0.3:
        assert measurement.neighbor_calls >= 1


def test_a_blocked_event_loop_is_detected():
    """The measurement itself works: a case that computes on the loop blocks it and needs memory."""
    measurement = load_measurements()["proof"]
    assert measurement.blocked_cpu_ms > BLOCKED_MS
    assert measurement.memory_mib > MEMORY_MIB
