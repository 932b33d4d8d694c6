"""Modules that run in children forked from a process that has loaded them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parts import ROOT

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux forks")

# What the parent runs: a child for each line of arguments, and how it ended.
PARENT = """
import json, os, signal, sys, threading
from bonobot.processes.forked_process import can_fork, fork_module

signal.signal(signal.SIGTERM, signal.SIG_IGN)
assert can_fork()
results = {}
for name in sys.argv[1:]:
    child = fork_module(
        ["program", name],
        title="bonobot web",
        environment={"ONLY": "this"},
        prepare_child=None,
    )
    output = child.stdout.read().decode()
    results[name] = [child.wait(), output]
    assert child.poll() == results[name][0]
threading.Thread(target=threading.Event().wait, daemon=True).start()
assert not can_fork(), "a child would not have the thread"
print(json.dumps(results))
"""
PROGRAM = """
import atexit, os, signal, sys, threading, time
name = sys.argv[1]
assert __name__ == "__main__"
if name == "end":
    atexit.register(print, "last words")
elif name == "status":
    sys.exit(3)
elif name == "message":
    sys.exit("no schedule")
elif name == "fault":
    raise ValueError("broken")
elif name == "signal":
    os.kill(os.getpid(), signal.SIGTERM)
elif name == "thread":
    def speak():
        threading.main_thread().join()
        print("from a thread")
    threading.Thread(target=speak).start()
elif name == "state":
    files = sorted(map(int, os.listdir("/proc/self/fd")))[:-1]
    title = open("/proc/self/cmdline").read().strip(chr(0))
    print(files, dict(os.environ), title, os.getsid(0) == os.getpid(), sys.stdin.read() == "")
"""


def run_children(folder: Path, *names: str) -> dict[str, tuple[int, str]]:
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-c", PARENT, *names],
        capture_output=True,
        check=True,
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{folder}", "PARENT": "yes"},
        text=True,
        timeout=60,
    )
    return {name: (status, output) for name, (status, output) in json.loads(result.stdout).items()}


def test_a_child_ends_as_an_interpreter_does(tmp_path: Path) -> None:
    names = ("end", "status", "message", "fault", "signal", "thread")
    results = run_children(tmp_path, *names)
    fault = results.pop("fault")
    assert fault[0] == 1
    assert fault[1].startswith("Traceback")
    assert fault[1].endswith("ValueError: broken\n")
    assert results == {
        "end": (0, "last words\n"),
        "status": (3, ""),
        "message": (1, "no schedule\n"),
        "signal": (-15, ""),
        "thread": (0, "from a thread\n"),
    }


def test_a_child_has_its_own_environment_title_session_and_no_files_of_its_parent(
    tmp_path: Path,
) -> None:
    [(status, output)] = run_children(tmp_path, "state").values()
    assert (status, output) == (0, "[0, 1, 2] {'ONLY': 'this'} bonobot web True True\n")
