"""Run several commands of `bonobot` in one process: each as the program runs it, loaded once.

It reads a command a line (a JSON list of words) and answers a line: its status, its output and its
complaint.
"""

import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import NamedTuple

from bonobot.__main__ import main


class CommandResult(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


def run(words: list[str]) -> CommandResult:
    """Run a command and return how it ended."""
    out, err = StringIO(), StringIO()
    status = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(words)
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    return CommandResult(status, out.getvalue(), err.getvalue())


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
        sys.stdout.flush()
