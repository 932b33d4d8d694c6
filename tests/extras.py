"""Install the wheel with each extra alone and start it, as somebody new would: `make extras`.

A clean copy of what is committed becomes a wheel. For each extra, an environment of its own gets
that wheel and the extra from an index (the network is needed), and in an empty folder `bonobot up`
must become ready, let its administrator in, carry a tool's call through the gateway and the
extra's own operation, and take all its processes along at Ctrl-C. `postgres` and `redis` use, and
empty, what `DATABASE_URL` and `REDIS_URL` name, and are left out without them.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import venv
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.parts import CLIENTS, ROOT
from tests.processes import Process, find_unused_port, start_process
from tests.wait import eventually

GREETER = ROOT / "tests" / "servers" / "minimal_server.py"
READY_S = 180.0
ENDS_S = 60.0  # a worker may take 45 of them
WITHOUT = "none"
MODELS = {
    "anthropic": ("--kind", "anthropic", "--key", "none", "--url", "http://127.0.0.1:9"),
    "bedrock": (
        "--kind",
        "bedrock",
        "--region",
        "eu-central-1",
        "--access-key-id",
        "a",
        "--key",
        "b",
    ),
    "google": ("--kind", "google", "--key", "none", "--url", "http://127.0.0.1:9"),
}


@dataclass
class Installation:
    """A wheel with one extra, in a folder of its own."""

    extra: str
    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=find_unused_port)
    process: Process | None = None

    @property
    def python(self) -> Path:
        return self.folder / "environment" / "bin" / "python"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        own = {"HOME": str(self.folder), "BONOBOT_URL": self.url, "PYTHONUNBUFFERED": "1"}
        return inherited | own | self.settings

    def install(self, wheel: Path) -> None:
        """Make the environment; what an index gives is what somebody new gets."""
        venv.create(self.folder / "environment", with_pip=True)
        requirement = f"{wheel}[{self.extra}]" if self.extra != WITHOUT else str(wheel)
        run_command(
            self.python,
            "-m",
            "pip",
            "--quiet",
            "--disable-pip-version-check",
            "install",
            requirement,
        )

    def start(self) -> None:
        """Start it in an empty folder and wait until it is ready."""
        (self.folder / "empty").mkdir()
        command = [str(self.python.with_name("bonobot")), "up", "--port", str(self.port)]
        self.process = start_process(
            "up", command, folder=self.folder, env=self.environment, cwd=self.folder / "empty"
        )
        eventually(self._ready, within=READY_S, every=0.5, what="`bonobot up`")

    def _ready(self) -> bool:
        assert self.process is not None
        return self.process.require() and "is ready" in self.process.log()

    def bonobot(self, *arguments: str | Path) -> str:
        """Run a command of this installation and return what it printed."""
        return run_command(
            self.python.with_name("bonobot"),
            *arguments,
            cwd=self.folder / "empty",
            env=self.environment,
        )

    def sign_in(self) -> httpx.Client:
        """Return the administrator's browser, signed in with what was printed."""
        assert self.process is not None
        credentials = dict(
            re.findall(r"^  (user|password)\s+(\S+)", self.process.log(), re.MULTILINE)
        )
        browser = httpx.Client(base_url=self.url, follow_redirects=True, timeout=30)
        login = browser.get("/admin/login/")
        form = {
            "username": credentials["user"],
            "password": credentials["password"],
            "next": "/admin/",
        }
        home = browser.post(
            "/admin/login/",
            data={**form, "csrfmiddlewaretoken": find_hidden_value(login.text)},
            headers={"Referer": f"{self.url}/admin/login/"},
        )
        assert (home.status_code, home.url.path) == (200, "/admin/"), home.url
        return browser

    def end(self) -> None:
        """Interrupt it as Ctrl-C does; nothing of it may stay. Again is harmless."""
        process, self.process = self.process, None
        if process is None:
            return
        try:
            os.killpg(process.pid, signal.SIGINT)
            assert process.popen.wait(ENDS_S) == 0, process.log()
            eventually(
                lambda: not self.list_processes(), within=10, what="the end of every process"
            )
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {ENDS_S:g} s:\n{process.log()}") from None
        finally:
            process.kill()

    def list_processes(self) -> list[int]:
        """Return the processes that were started from this environment."""
        folder = str(self.folder).encode()
        pids = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if folder in path.read_bytes():
                    pids.append(int(path.parent.name))
            except OSError:
                continue
        return pids


def run_command(*command: str | Path, **options: object) -> str:
    """Run a command and return what it printed; raises AssertionError with what it complained."""
    words = [str(word) for word in command]
    process = subprocess.run(words, capture_output=True, check=False, text=True, **options)  # type: ignore[call-overload]
    assert process.returncode == 0, f"{' '.join(words)}\n{process.stdout}{process.stderr}"
    return str(process.stdout)


def find_hidden_value(page: str, name: str = "csrfmiddlewaretoken") -> str:
    """Return a hidden value of a form."""
    match = re.search(rf'name="{name}" value="([^"]+)"', page)
    assert match, f"no {name}"
    return match[1]


async def call_tool(url: str, token: str, tool: str, arguments: dict[str, object]) -> str:
    """Call a tool through the gateway and return what it said."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        result = await client.call_tool(tool, arguments)
    return " ".join(getattr(part, "text", "") for part in result.content)


def check_tool_call(installation: Installation) -> None:
    """Add a server and have one call reach it through the gateway."""
    shutil.copy(GREETER, installation.folder)
    command = f"{installation.python} {installation.folder / GREETER.name}"
    installation.bonobot("mcp", "add", "greeter", "--command", command, "--approve")
    output = installation.bonobot("tokens", "create", "extras", "--role", "operator", "--json")
    token = json.loads(output)["token"]
    greeting = asyncio.run(
        call_tool(f"{installation.url}/mcp/servers/greeter", token, "greet", {"name": "Ann"})
    )
    assert greeting == "Hello, Ann."


# -- What each extra is for ------------------------------------------------------------------------


class Collector(ThreadingHTTPServer):
    """Takes spans as an OpenTelemetry collector does, and keeps their bytes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.spans: list[bytes] = []


class _Taking(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.spans.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@contextmanager
def check_traces(installation: Installation) -> Iterator[None]:
    """Have a collector; spans of the call must reach it, uncompressed as OTLP is by default."""
    with Collector() as collector:
        threading.Thread(target=collector.serve_forever, args=(0.1,), daemon=True).start()
        installation.settings["BONOBOT_TRACES"] = (
            f"http://127.0.0.1:{collector.server_port}/v1/traces"
        )
        yield
        eventually(
            lambda: any(b"execute_tool" in body for body in collector.spans),
            within=30,
            what="a span of the call",
        )
        collector.shutdown()


@contextmanager
def check_oauth_client(installation: Installation) -> Iterator[None]:
    """Let a program in that knows nothing but an address, as the administrator."""
    installation.settings["BONOBOT_OAUTH"] = "true"
    yield
    client = [
        sys.executable,
        str(CLIENTS / "oauth_client.py"),
        f"{installation.url}/mcp/agents/demo",
    ]
    with (
        closing(installation.sign_in()) as browser,
        subprocess.Popen(client, stdout=subprocess.PIPE, text=True) as program,
    ):
        assert program.stdout is not None
        address = program.stdout.readline().strip()
        page = browser.get(address)
        scopes = re.findall(r'name="scopes" value="([^"]+)"', page.text)
        answer = {"answer": "allow", "role": "member", "scopes": scopes}
        answer["csrfmiddlewaretoken"] = find_hidden_value(page.text)
        response = browser.post(address, data=answer, headers={"Referer": address})
        assert "<title>Back</title>" in response.text, response.text[:500]
        output, _ = program.communicate(timeout=60)
    assert json.loads(output)["renewed"] is True


@contextmanager
def check_demo(installation: Installation) -> Iterator[None]:
    """Ask the demo's agent for the time, which a server of the extra knows."""
    yield
    output = installation.bonobot(
        "agents", "run", "demo", "What time is it in Asia/Tokyo?", "--json"
    )
    answer = json.loads(output)
    assert answer["status"] == "done", output
    assert [call["tool"] for call in answer["calls"]], output


@contextmanager
def check_model_client(installation: Installation) -> Iterator[None]:
    """Add an endpoint; asking it must fail on the way to the model, not for want of a package."""
    yield
    installation.bonobot(
        "models",
        "add",
        installation.extra,
        "--model",
        "m",
        *MODELS[installation.extra],
        "--allow-private",
    )
    command = [
        installation.python.with_name("bonobot"),
        "models",
        "test",
        installation.extra,
        "--json",
    ]
    process = subprocess.run(
        command,
        cwd=installation.folder / "empty",
        env=installation.environment,
        capture_output=True,
        check=False,
    )
    output = process.stdout + process.stderr
    assert b"pip install" not in output, output
    assert b"Traceback" not in output, output


@contextmanager
def use_postgres(installation: Installation) -> Iterator[None]:
    """Work in a database of its own on the server that `DATABASE_URL` names."""
    import psycopg

    server, name = os.environ["DATABASE_URL"], f"bonobot_extras_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            installation.settings["DATABASE_URL"] = f"{server.rpartition('/')[0]}/{name}"
            yield
            assert "PostgreSQL" in installation.bonobot("doctor", "--json")
            installation.end()
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def use_redis(installation: Installation) -> Iterator[None]:
    """Have the broker that `REDIS_URL` names."""
    installation.settings["REDIS_URL"] = os.environ["REDIS_URL"]
    yield
    assert "Redis" in installation.bonobot("doctor", "--json")


@contextmanager
def check_nothing_else(installation: Installation) -> Iterator[None]:
    """Do nothing more."""
    yield


OPERATIONS: dict[str, Callable[[Installation], object]] = {
    WITHOUT: check_nothing_else,
    "postgres": use_postgres,
    "redis": use_redis,
    "otel": check_traces,
    "oauth": check_oauth_client,
    "demo": check_demo,
    **dict.fromkeys(MODELS, check_model_client),
}
NEEDS = {"postgres": "DATABASE_URL", "redis": "REDIS_URL"}


def build_wheel(folder: Path) -> Path:
    """Build the wheel of what is committed, from a clean copy."""
    run_command("git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), folder / "source")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run_command(*pip, "wheel", folder / "source", "--no-deps", "--wheel-dir", folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_extra(extra: str, wheel: Path, folder: Path) -> None:
    """Install one extra and go all the way with it."""
    folder.mkdir()
    installation = Installation(extra, folder)
    installation.install(wheel)
    try:
        with OPERATIONS[extra](installation):  # type: ignore[attr-defined]
            installation.start()
            installation.sign_in().close()
            check_tool_call(installation)
    finally:
        installation.end()


def list_extras() -> list[str]:
    """Return the extras that there are, after none."""
    described = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [WITHOUT, *described["project"]["optional-dependencies"]]


def main() -> int:
    """Try those that are named, else all; 0 where each went well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", choices=[[], *list_extras()])
    names = parser.parse_args().extras or list_extras()
    failed = []
    with tempfile.TemporaryDirectory(prefix="bonobot-extras-") as name:
        wheel = build_wheel(Path(name))
        for extra in names:
            if (needed := NEEDS.get(extra)) and not os.environ.get(needed):
                sys.stdout.write(f"{extra}: left out, {needed} is not set\n")
                continue
            started = time.monotonic()
            try:
                check_extra(extra, wheel, Path(name) / extra)
            except AssertionError as error:
                failed.append(extra)
                sys.stdout.write(f"{error}\n")
            outcome = "FAILED" if extra in failed else "well"
            sys.stdout.write(f"{extra}: {outcome}, {time.monotonic() - started:.0f} s\n")
            sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
