"""An installation like that of a reader: `bonobot up` with the demo, and a shell."""

import os
import selectors
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests import processes
from tests.database import copy_template
from tests.docs import command_server
from tests.parts import ROOT
from tests.wait import eventually

TIMEOUT_S = 60.0
EXCLUDED = {".git", ".pytest_cache", "var", "site"}
DATABASE = "bonobot.sqlite3"
DEFAULT_URL = "http://127.0.0.1:8000"


class Shell:
    """A shell that keeps running, so that variables and the folder are kept."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._step, self._output = folder / "step.sh", folder / "step.out"
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder / "checkout",
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def run(self, text: str) -> tuple[int, str]:
        """Run a command and return its status and its output, including stderr."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._step.write_text(text + "\n", encoding="utf-8")
        self._bash.stdin.write(f". '{self._step}' >'{self._output}' 2>&1 </dev/null; echo $?\n")
        with selectors.DefaultSelector() as selector:
            selector.register(self._bash.stdout, selectors.EVENT_READ)
            assert selector.select(TIMEOUT_S), f"`{text}` didn't end: {self.output()}"
        return int(self._bash.stdout.readline() or 70), self.output()

    def output(self) -> str:
        """Return the output of the latest command."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        """End the shell."""
        with self._bash, suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)


@dataclass
class Installation:
    """Where the commands of a page run: a folder that looks like a checkout, and a server."""

    folder: Path
    url: str = DEFAULT_URL
    environment: dict[str, str] = field(default_factory=dict)
    up: processes.Process | None = None

    @contextmanager
    def shell(self) -> Iterator[Shell]:
        """Open a shell in the checkout."""
        opened = Shell(self.folder, self.environment)
        try:
            yield opened
        finally:
            opened.close()


def _copy(source: Path, target: Path) -> None:
    """Copy the keys and the database of a running installation."""
    target.mkdir(mode=0o700)
    shutil.copytree(source / "keys", target / "keys")
    with (
        closing(sqlite3.connect(source / DATABASE)) as running,
        closing(sqlite3.connect(target / DATABASE)) as copied,
    ):
        running.backup(copied)


def _is_ready(up: processes.Process) -> bool:
    """Return whether it has printed its URLs."""
    return up.require() and "Ctrl-C stops" in up.log()


@contextmanager
def create_installation(
    folder: Path, *, like: Installation | None = None
) -> Iterator[Installation]:
    """Create an installation: `bonobot up` with the demo, or a copy without processes.

    The first one starts with empty tables: the test of the wheel covers their creation.
    """
    checkout, programs, home = (folder / name for name in ("checkout", "bin", "home"))
    for new_folder in (checkout, programs, home):
        new_folder.mkdir()
    for entry in ROOT.iterdir():
        if entry.name not in EXCLUDED:
            (checkout / entry.name).symlink_to(entry)
    port = processes.find_unused_port()
    path = os.pathsep.join((str(programs), str(Path(sys.executable).parent), os.environ["PATH"]))
    # Without PYTHONPATH, processes of the product are forked from one that loaded its libraries.
    base_environment = {
        "BONOBOT_VAR": str(folder / "var"),
        "BONOBOT_URL": f"http://127.0.0.1:{port}",
        "BONOBOT_START_S": "60",  # for MCP servers on a busy machine
        "DJANGO_SETTINGS_MODULE": "bonobot.settings",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "PATH": path,
    }
    up = None
    with ExitStack() as stack:
        if like:
            _copy(like.folder / "var", folder / "var")
        else:
            (folder / "var").mkdir(mode=0o700)
            copy_template(folder / "var" / DATABASE)
            command = [sys.executable, "-m", "bonobot", "up", "--port", str(port)]
            up = processes.start_process("up", command, folder=folder, env=base_environment)
            stack.callback(up.kill)  # stopping takes four seconds and has tests of its own
            eventually(partial(_is_ready, up), within=90, what="up")
        address = folder / "commands"
        command_server.write_program(programs / "bonobot", address)
        server = [sys.executable, "-m", command_server.__name__, "serve", str(address)]
        forker = processes.start_process("forking", server, folder=folder, env=base_environment)
        stack.callback(forker.kill)
        eventually(lambda: forker.require() and address.exists(), within=60, what="its socket")
        environment = base_environment | {"PYTHONPATH": str(ROOT)}
        yield Installation(folder, f"http://127.0.0.1:{port}", environment, up)
