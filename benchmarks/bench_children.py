"""Check that no processes remain of a thousand stdio servers that start children."""

import asyncio
import sys
import time

from mcp_servers.client.child_process import choose_containment
from tests.mcp_servers.client.process_leaks import PER_WORKER, open_many

OPENS = 900
KILLED_WORKERS = 100 // PER_WORKER


def test_no_processes_remain_of_a_thousand_children() -> None:
    started_at = time.perf_counter()
    remaining = asyncio.run(open_many(OPENS, workers=KILLED_WORKERS))
    took_s = time.perf_counter() - started_at
    sys.stdout.write(
        f"\n{remaining} in {took_s:.1f} s, contained by `{choose_containment().name}`\n"
    )
    assert (remaining.processes, remaining.zombies) == (0, 0)
    assert abs(remaining.descriptors) <= 5
