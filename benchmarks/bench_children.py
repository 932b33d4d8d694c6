"""`make bench`: what stays of a thousand stdio servers that leave processes behind."""

import asyncio
import sys
import time

from mcp_servers.client.child_process import choose_containment
from tests.mcp_servers.client.process_leaks import PER_WORKER, open_many

OPENS = 900
KILLED_WORKERS = 100 // PER_WORKER


def test_nothing_stays_of_a_thousand_children() -> None:
    began = time.perf_counter()
    left = asyncio.run(open_many(OPENS, workers=KILLED_WORKERS))
    took_s = time.perf_counter() - began
    sys.stdout.write(f"\n{left} in {took_s:.1f} s, contained by `{choose_containment().name}`\n")
    assert (left.processes, left.zombies) == (0, 0)
    assert abs(left.descriptors) <= 5
