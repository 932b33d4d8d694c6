"""Run the whole suite several times under load, and list the tests that failed in any run.

    make repeat                       # ten runs beside four busy processes
    make repeat ARGS="--runs 3 --load 0 -- -k gateway"
    DATABASE_URL=… REDIS_URL=… make repeat

The exit status is 1 if any test failed in any run. What follows `--` is passed on to pytest.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.parts import ROOT

FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
BUSY = "while True: pass"


def parse_arguments(words: list[str]) -> argparse.Namespace:
    """Return the options, and in `pytest` what is passed on."""
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10, help="how many runs (10)")
    parser.add_argument("--load", type=int, default=4, help="busy processes beside each run (4)")
    parser.add_argument("pytest", nargs="*", help="options of pytest, after --")
    return parser.parse_args(words)


@contextmanager
def load_processors(count: int) -> Iterator[None]:
    """Keep so many processes busy, as `stress --cpu` does."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def run_suite(options: argparse.Namespace) -> tuple[list[str], float]:
    """Run the suite once; return the tests that failed and the seconds it took."""
    FAILED.unlink(missing_ok=True)
    started = time.monotonic()
    command = ["make", "test", "TEST_TIMEOUT=600", f"ARGS=-q {shlex.join(options.pytest)}"]
    ended = subprocess.run(command, cwd=ROOT, check=False)
    failed = list(json.loads(FAILED.read_text(encoding="utf-8"))) if FAILED.exists() else []
    if ended.returncode and not failed:
        failed = [f"make ended with {ended.returncode}"]
    return failed, time.monotonic() - started


def main(words: list[str]) -> int:
    """Run, print a line for each run and the list at the end; return the exit status."""
    options = parse_arguments(words)
    failures: Counter[str] = Counter()
    for number in range(1, options.runs + 1):
        with load_processors(options.load):
            failed, seconds = run_suite(options)
        failures.update(failed)
        sys.stdout.write(f"run {number}: {len(failed)} failed, {seconds:.0f} s\n")
        sys.stdout.flush()
    for test, count in failures.most_common():
        sys.stdout.write(f"{count} of {options.runs}: {test}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
