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
from tests.processes import Process, start, unused_port
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
    port: int = field(default_factory=unused_port)
    process: Process | None = None

    @property
    def python(self) -> Path:
        return self.folder / "environment" / "bin" / "python"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        mine = {"HOME": str(self.folder), "BONOBOT_URL": self.url, "PYTHONUNBUFFERED": "1"}
        return kept | mine | self.settings

    def install(self, wheel: Path) -> None:
        """Make the environment; what an index gives is what somebody new gets."""
        venv.create(self.folder / "environment", with_pip=True)
        wanted = f"{wheel}[{self.extra}]" if self.extra != WITHOUT else str(wheel)
        ran(self.python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", wanted)

    def begin(self) -> None:
        """Start it in an empty folder and wait until it is ready."""
        (self.folder / "empty").mkdir()
        command = [str(self.python.with_name("bonobot")), "up", "--port", str(self.port)]
        self.process = start(
            "up", command, folder=self.folder, env=self.environment, cwd=self.folder / "empty"
        )
        eventually(self._ready, within=READY_S, every=0.5, what="`bonobot up`")

    def _ready(self) -> bool:
        assert self.process is not None
        return self.process.require() and "is ready" in self.process.log()

    def bonobot(self, *arguments: str | Path) -> str:
        """Run a command of this installation and return what it printed."""
        return ran(
            self.python.with_name("bonobot"),
            *arguments,
            cwd=self.folder / "empty",
            env=self.environment,
        )

    def person(self) -> httpx.Client:
        """Return the administrator's browser, signed in with what was printed."""
        assert self.process is not None
        said = dict(re.findall(r"^  (user|password)\s+(\S+)", self.process.log(), re.MULTILINE))
        browser = httpx.Client(base_url=self.url, follow_redirects=True, timeout=30)
        login = browser.get("/admin/login/")
        form = {"username": said["user"], "password": said["password"], "next": "/admin/"}
        home = browser.post(
            "/admin/login/",
            data={**form, "csrfmiddlewaretoken": hidden(login.text)},
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
            eventually(lambda: not self.left(), within=10, what="the end of every process")
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {ENDS_S:g} s:\n{process.log()}") from None
        finally:
            process.kill()

    def left(self) -> list[int]:
        """Return the processes that were started from this environment."""
        mine = str(self.folder).encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if mine in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found


def ran(*command: str | Path, **options: object) -> str:
    """Run a command and return what it printed; raises AssertionError with what it complained."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, check=False, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
    return str(done.stdout)


def hidden(page: str, name: str = "csrfmiddlewaretoken") -> str:
    """Return a hidden value of a form."""
    found = re.search(rf'name="{name}" value="([^"]+)"', page)
    assert found, f"no {name}"
    return found[1]


async def called(url: str, token: str, tool: str, arguments: dict[str, object]) -> str:
    """Call a tool through the gateway and return what it said."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        answer = await client.call_tool(tool, arguments)
    return " ".join(getattr(part, "text", "") for part in answer.content)


def carries_a_call(one: Installation) -> None:
    """Add a server and have one call reach it through the gateway."""
    shutil.copy(GREETER, one.folder)
    command = f"{one.python} {one.folder / GREETER.name}"
    one.bonobot("mcp", "add", "greeter", "--command", command, "--approve")
    made = one.bonobot("tokens", "create", "extras", "--role", "operator", "--json")
    token = json.loads(made)["token"]
    said = asyncio.run(called(f"{one.url}/mcp/servers/greeter", token, "greet", {"name": "Ann"}))
    assert said == "Hello, Ann."


# -- What each extra is for ------------------------------------------------------------------------


class Collector(ThreadingHTTPServer):
    """Takes spans as an OpenTelemetry collector does, and keeps their bytes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.taken: list[bytes] = []


class _Taking(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.taken.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@contextmanager
def traced(one: Installation) -> Iterator[None]:
    """Have a collector; spans of the call must reach it, uncompressed as OTLP is by default."""
    with Collector() as collector:
        threading.Thread(target=collector.serve_forever, args=(0.1,), daemon=True).start()
        one.settings["BONOBOT_TRACES"] = f"http://127.0.0.1:{collector.server_port}/v1/traces"
        yield
        eventually(
            lambda: any(b"execute_tool" in body for body in collector.taken),
            within=30,
            what="a span of the call",
        )
        collector.shutdown()


@contextmanager
def letting_in(one: Installation) -> Iterator[None]:
    """Let a program in that knows nothing but an address, as the administrator."""
    one.settings["BONOBOT_OAUTH"] = "true"
    yield
    client = [sys.executable, str(CLIENTS / "oauth_client.py"), f"{one.url}/mcp/agents/demo"]
    with (
        closing(one.person()) as me,
        subprocess.Popen(client, stdout=subprocess.PIPE, text=True) as program,
    ):
        assert program.stdout is not None
        address = program.stdout.readline().strip()
        page = me.get(address)
        scopes = re.findall(r'name="scopes" value="([^"]+)"', page.text)
        answer = {"answer": "allow", "role": "member", "scopes": scopes}
        answer["csrfmiddlewaretoken"] = hidden(page.text)
        back = me.post(address, data=answer, headers={"Referer": address})
        assert "<title>Back</title>" in back.text, back.text[:500]
        out, _ = program.communicate(timeout=60)
    assert json.loads(out)["renewed"] is True


@contextmanager
def beside_the_demo(one: Installation) -> Iterator[None]:
    """Ask the demo's agent for the time, which a server of the extra knows."""
    yield
    told = one.bonobot("agents", "run", "demo", "What time is it in Asia/Tokyo?", "--json")
    answer = json.loads(told)
    assert answer["status"] == "done", told
    assert [call["tool"] for call in answer["calls"]], told


@contextmanager
def with_its_client(one: Installation) -> Iterator[None]:
    """Add an endpoint; asking it must fail on the way to the model, not for want of a package."""
    yield
    one.bonobot("models", "add", one.extra, "--model", "m", *MODELS[one.extra], "--allow-private")
    command = [one.python.with_name("bonobot"), "models", "test", one.extra, "--json"]
    tested = subprocess.run(
        command, cwd=one.folder / "empty", env=one.environment, capture_output=True, check=False
    )
    said = tested.stdout + tested.stderr
    assert b"pip install" not in said, said
    assert b"Traceback" not in said, said


@contextmanager
def on_postgres(one: Installation) -> Iterator[None]:
    """Work in a database of its own on the server that `DATABASE_URL` names."""
    import psycopg

    server, name = os.environ["DATABASE_URL"], f"bonobot_extras_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as link:
        link.execute(f"CREATE DATABASE {name}")
        try:
            one.settings["DATABASE_URL"] = f"{server.rpartition('/')[0]}/{name}"
            yield
            assert "PostgreSQL" in one.bonobot("doctor", "--json")
            one.end()
        finally:
            link.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def on_redis(one: Installation) -> Iterator[None]:
    """Have the broker that `REDIS_URL` names."""
    one.settings["REDIS_URL"] = os.environ["REDIS_URL"]
    yield
    assert "Redis" in one.bonobot("doctor", "--json")


@contextmanager
def plain(one: Installation) -> Iterator[None]:
    """Do nothing more."""
    yield


OPERATIONS: dict[str, Callable[[Installation], object]] = {
    WITHOUT: plain,
    "postgres": on_postgres,
    "redis": on_redis,
    "otel": traced,
    "oauth": letting_in,
    "demo": beside_the_demo,
    **dict.fromkeys(MODELS, with_its_client),
}
NEEDS = {"postgres": "DATABASE_URL", "redis": "REDIS_URL"}


def built(folder: Path) -> Path:
    """Build the wheel of what is committed, from a clean copy."""
    ran("git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), folder / "source")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    ran(*pip, "wheel", folder / "source", "--no-deps", "--wheel-dir", folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def tried(extra: str, wheel: Path, folder: Path) -> None:
    """Install one extra and go all the way with it."""
    folder.mkdir()
    one = Installation(extra, folder)
    one.install(wheel)
    try:
        with OPERATIONS[extra](one):  # type: ignore[attr-defined]
            one.begin()
            one.person().close()
            carries_a_call(one)
    finally:
        one.end()


def extras() -> list[str]:
    """Return the extras that there are, after none."""
    described = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [WITHOUT, *described["project"]["optional-dependencies"]]


def main() -> int:
    """Try those that are named, else all; 0 where each went well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", choices=[[], *extras()])
    wanted = parser.parse_args().extras or extras()
    failed = []
    with tempfile.TemporaryDirectory(prefix="bonobot-extras-") as name:
        wheel = built(Path(name))
        for extra in wanted:
            if (needed := NEEDS.get(extra)) and not os.environ.get(needed):
                sys.stdout.write(f"{extra}: left out, {needed} is not set\n")
                continue
            began = time.monotonic()
            try:
                tried(extra, wheel, Path(name) / extra)
            except AssertionError as fault:
                failed.append(extra)
                sys.stdout.write(f"{fault}\n")
            said = "FAILED" if extra in failed else "well"
            sys.stdout.write(f"{extra}: {said}, {time.monotonic() - began:.0f} s\n")
            sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
