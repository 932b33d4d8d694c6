"""Start, await and stop real processes for tests; their logs are kept if a test fails."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.db import connection

from bonobot.jobs.queues import QUEUE_NAMES
from bonobot.processes.programs import build_web_process
from bonobot.processes.supervisor import build_parent_death_hook
from tests.environment import VAR
from tests.fork_server import ForkedProcess, can_fork, fork_module
from tests.loaded_parents import LoadedChild, start_loaded
from tests.parts import ROOT
from tests.wait import eventually

# Environment variables that children inherit; all others are set explicitly.
INHERITED = (
    "HOME",
    "LANG",
    "LC_ALL",
    "PATH",
    "REDIS_URL",
    "TMPDIR",
    "SSL_CERT_FILE",
    "VIRTUAL_ENV",
)
# Of processes that are started often: they are forked from one that has loaded the product.
FREQUENT_SETTINGS: tuple[dict[str, str], ...] = ({}, {"BONOBOT_OAUTH": "on"})


@dataclass
class Process:
    """A running child in its own process group."""

    name: str
    popen: subprocess.Popen[bytes] | ForkedProcess | LoadedChild
    log_file: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def log(self) -> str:
        """Return the output of the process so far."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """Kill the whole process group, like a crash of the machine."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait(10)

    def stop(self, *, within: float = 20.0) -> int:
        """Ask the process to end and return its exit status; kill its group if it doesn't."""
        if self.running:
            self.popen.terminate()
        try:
            return self.popen.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"`{self.name}` ignored SIGTERM for {within:g} s") from None
        finally:
            self.kill()

    def require(self) -> bool:
        """Return True; raise AssertionError with the log if the process has ended."""
        if not self.running:
            raise AssertionError(f"`{self.name}` ended with {self.popen.poll()}:\n{self.log()}")
        return True


@dataclass
class Web(Process):
    """A running web process."""

    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class HeldPort:
    """A port of the loopback that no other program gets, for one web process after the other.

    The next one has the same BONOBOT_URL, and so the same environment.
    """

    def __init__(self) -> None:
        self.user: Web | None = None
        # Bound, not listened on: with this option, uvicorn can listen beside it.
        holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        self.number = int(holder.getsockname()[1])
        holder.detach()  # it stays open until this process ends

    @property
    def free(self) -> bool:
        return self.user is None or not self.user.running


_held_ports: list[HeldPort] = []


def build_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child that shares this run's database, keys and broker."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {
        **inherited,
        "BONOBOT_VAR": str(VAR),
        "BONOBOT_REDIS_PREFIX": os.environ["BONOBOT_REDIS_PREFIX"],
        "BONOBOT_LOG_FORMAT": "text",
        "BONOBOT_STDIO_SANDBOX": os.environ["BONOBOT_STDIO_SANDBOX"],
        "DATABASE_URL": build_database_url(),
        "DJANGO_SETTINGS_MODULE": "bonobot.settings",
        "PYTHONUNBUFFERED": "1",
        **(extra or {}),
    }


def build_database_url() -> str:
    """Return the URL of the test database."""
    settings = connection.settings_dict
    name = str(settings["NAME"])
    if connection.vendor == "sqlite":
        return f"sqlite:///{urllib.parse.quote(name)}"
    quote = urllib.parse.quote
    user = ":".join(quote(str(settings[key]), safe="") for key in ("USER", "PASSWORD"))
    return f"postgresql://{user}@{settings['HOST']}:{settings['PORT'] or 5432}/{quote(name)}"


def start_process(
    name: str, command: Sequence[str], *, folder: Path, env: Mapping[str, str], cwd: Path = ROOT
) -> Process:
    """Start a process whose log goes to `folder`."""
    log_file = folder / f"{name}.log"
    if cwd == ROOT and can_fork(command, env):
        forked = fork_module(name, command, env=env, cwd=cwd, log_file=log_file)
        return Process(name, forked, log_file)
    with log_file.open("wb") as log:
        popen = subprocess.Popen(
            list(command),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # If the run is killed, its worker must not take the next run's messages.
            preexec_fn=build_parent_death_hook(os.getpid()),
        )
    return Process(name, popen, log_file)


def _start_product(
    name: str, command: Sequence[str], folder: Path, env: Mapping[str, str], *, frequent: bool
) -> Process:
    """Start a process of the product: of a frequent environment from what is loaded already."""
    if frequent:
        log_file = folder / f"{name}.log"
        child = start_loaded(name, command, env=env, cwd=ROOT, log_file=log_file)
        return Process(name, child, log_file)
    return start_process(name, command, folder=folder, env=env)


def start_worker(folder: Path, name: str, extra: Mapping[str, str] | None = None) -> Process:
    """Start a Celery worker and return it when it answers a ping."""
    from bonobot.celery import app

    node = f"{name}@test"
    process = _start_product(
        name,
        [
            *(sys.executable, "-m", "celery", "--skip-checks", "--app", "bonobot", "worker"),
            *("--pool", "threads", "--queues", ",".join(QUEUE_NAMES), "--loglevel", "INFO"),
            *("--hostname", node, "--without-gossip", "--without-mingle"),
        ],
        folder,
        build_environment(extra),
        frequent=(extra or {}) in FREQUENT_SETTINGS,
    )

    def answers() -> bool:
        process.require()
        return bool(app.control.ping(destination=[node], timeout=0.5, limit=1))

    _wait_until_ready(process, answers, what=f"an answer of `{name}`")
    return process


def start_web(
    folder: Path, name: str, *, port: int = 0, extra: Mapping[str, str] | None = None
) -> Web:
    """Start a web process, on a port of its own without `port`; return it when /healthz answers."""
    held = None if port else _find_held_port()
    port = held.number if held else port
    extra = extra or {}
    started = _start_product(
        name,
        [
            *build_web_process("127.0.0.1", port).command,
        ],
        folder,
        build_environment({"BONOBOT_URL": f"http://127.0.0.1:{port}", **extra}),
        frequent=held is not None and extra in FREQUENT_SETTINGS,
    )
    process = Web(name, started.popen, started.log_file, port=port)
    if held:
        held.user = process
    _wait_until_ready(
        process, lambda: process.require() and is_healthy(port), what=f"/healthz of `{name}`"
    )
    return process


def _find_held_port() -> HeldPort:
    """Return a port that no running web process has."""
    for held in _held_ports:
        if held.free:
            return held
    _held_ports.append(HeldPort())
    return _held_ports[-1]


def _wait_until_ready(process: Process, answers: Callable[[], bool], *, what: str) -> None:
    """Wait until the process answers; kill it if it never does."""
    try:
        eventually(answers, within=60, what=what)
    except AssertionError:
        process.kill()
        raise


@contextlib.contextmanager
def serve(script: str, *arguments: object) -> Iterator[str]:
    """Run a server of `tests/servers` that prints its port; yield its URL."""
    command = [sys.executable, str(ROOT / "tests" / "servers" / script), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{server.stdout.readline().split()[1]}/mcp"
        finally:
            server.terminate()


def is_healthy(port: int) -> bool:
    """Return whether /healthz on the port answers 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def find_unused_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
