import subprocess
import sys

import pytest

from tests.parts import ROOT

# Threads allocate at the same time; glibc then prints a line for each arena.
PROGRAM = """
import ctypes, threading
from bonobot.processes.memory_arenas import limit_memory_arenas
limit_memory_arenas()
library = ctypes.CDLL(None)
together = threading.Barrier(6)
def allocate():
    library.malloc(1000)
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
library.malloc_stats()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc has arenas")
def test_threads_share_two_arenas() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, check=True, cwd=ROOT, text=True
    )
    arenas = [line for line in result.stderr.splitlines() if line.startswith("Arena")]
    assert 1 <= len(arenas) <= 2, result.stderr
