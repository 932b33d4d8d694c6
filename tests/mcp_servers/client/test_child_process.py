"""Child processes: limits for lines and stderr, and processes that end when they should."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis.strategies import binary, integers, lists

from mcp_servers.client import child_process, environment_rules, stdio
from mcp_servers.client.child_process import (
    DEATH_SIGNAL,
    GROUP,
    NAMESPACE,
    LineSplitter,
    OverlongLine,
    ProcessContainment,
    StderrTail,
)
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import HOLDER, SERVERS, call, faulty_stdio, text_of, until

CANARIES = {
    "AWS_SECRET_ACCESS_KEY": "canary-1",
    "BONOBOT_SECRET_KEY": "canary-2",
    "DATABASE_URL": "canary-3",
    "GITHUB_TOKEN": "canary-4",
    "HTTPS_PROXY": "canary-5",
    "LD_LIBRARY_PATH": "canary-6",
    "OPENAI_API_KEY": "canary-7",
    "PYTHONPATH": "canary-8",
    "REDIS_URL": "canary-9",
    "SSH_AUTH_SOCK": "canary-10",
}


def list_processes(token: str) -> list[int]:
    """Return the processes whose command line contains `token`."""
    pids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if token in (folder / "cmdline").read_text(errors="replace"):
                    pids.append(int(folder.name))
            except OSError:
                continue
    return pids


async def wait_until_gone(token: str) -> None:
    """Wait until no command line contains `token`."""
    await until(lambda: not list_processes(token))


async def wait_until_running(token: str, count: int) -> None:
    """Wait until `count` command lines contain `token`."""
    await until(lambda: len(list_processes(token)) >= count)


def build_marked_endpoint(token: str) -> ServerEndpoint:
    endpoint = faulty_stdio()
    return ServerEndpoint(**{**vars(endpoint), "args": (*endpoint.args, f"--token={token}")})


@pytest.fixture
def token() -> str:
    return f"bonobot-test-{uuid4().hex}"


@pytest.fixture(params=["namespace", "death-signal", "group"])
def containment(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> ProcessContainment:
    """Use each containment that works on this machine."""
    requested = {"namespace": NAMESPACE, "death-signal": DEATH_SIGNAL, "group": GROUP}[
        request.param
    ]
    available = GROUP if requested is GROUP else child_process._resolve_containment(requested)
    if available is None:
        pytest.skip(f"`{request.param}` doesn't work on this machine")
    monkeypatch.setattr(child_process, "choose_containment", lambda: available)
    return available


# --- lines


@given(lists(binary(max_size=40)), integers(1, 7))
def test_lines_are_split_the_same_for_any_chunks(lines_written: list[bytes], size: int):
    expected = [line.replace(b"\n", b"") for line in lines_written]
    data = b"".join(line + b"\n" for line in expected)
    lines = LineSplitter(limit=64)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert [line for piece in pieces for line in lines.feed(piece)] == expected


@given(binary(min_size=101, max_size=2000), integers(1, 300))
def test_both_ends_of_a_line_over_the_limit_are_kept(long_line: bytes, size: int):
    long_line = long_line.replace(b"\n", b"x")
    lines = LineSplitter(limit=100)
    data = long_line + b"\nnext\n"
    lines_found = [
        line
        for start in range(0, len(data), size)
        for line in lines.feed(data[start : start + size])
        if not (isinstance(line, OverlongLine) and line.endless)
    ]
    first, second = lines_found
    assert second == b"next"
    assert isinstance(first, OverlongLine)
    assert long_line.startswith(first.head)
    assert long_line.endswith(first.tail[-min(256, len(long_line)) :])


def test_a_line_far_over_the_limit_is_never_buffered():
    lines = LineSplitter(limit=1000)
    lines_found = [line for _ in range(200) for line in lines.feed(b"x" * 100)]
    assert lines_found
    assert all(isinstance(line, OverlongLine) and line.endless for line in lines_found)
    assert lines._parts == []


def test_the_buffer_keeps_the_end():
    tail = StderrTail()
    for _ in range(100):
        tail.add(b"a" * 1000)
    tail.add("ü\xff".encode("latin-1"))
    assert len(tail.get_text()) == 64 * 1024
    assert tail.get_text().endswith("a��")


# --- the environment of a child


async def test_a_child_sees_its_declared_environment_and_the_minimum(
    connections: ConnectionPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    endpoint = faulty_stdio(env={"DECLARED": "yes"}, cwd=str(tmp_path))
    environment = json.loads(text_of(await call(connections, endpoint, "environment")))
    assert environment.pop("DECLARED") == "yes"
    assert environment.pop("cwd") == str(tmp_path)
    assert environment["TZ"] == "Asia/Tokyo"
    assert not [value for value in environment.values() if "canary" in value]
    allowed = {
        *environment_rules.INHERITED_VARIABLES,
        "LC_CTYPE",
        "PWD",
        "_",
    }  # Python itself sets LC_CTYPE
    assert set(environment) <= allowed


def test_declared_variables_win_and_our_commands_are_last_on_the_path(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("PATH", "/somewhere")
    built = environment_rules.build_environment({"HOME": "/elsewhere"})
    assert built["HOME"] == "/elsewhere"
    assert built["PATH"] == f"/somewhere{os.pathsep}{Path(sys.executable).parent}"
    assert environment_rules.build_environment({"PATH": "/only"})["PATH"] == "/only"


def test_commands_are_found_where_the_child_would_look(tmp_path: Path):
    script = tmp_path / "tool"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    env = {"PATH": str(tmp_path)}
    assert child_process.find_command("tool", env, None) == str(script)
    assert child_process.find_command("./tool", {}, str(tmp_path)) == str(script)
    assert child_process.find_command(str(script), {}, "/") == str(script)
    assert child_process.find_command("no-such-tool", env, None) is None


# --- how a child ends


async def test_a_child_and_what_it_started_are_gone_after_release(
    connections: ConnectionPool, containment: ProcessContainment, token: str
):
    endpoint = build_marked_endpoint(token)
    await call(connections, endpoint, "grandchild", token=token)
    await wait_until_running(token, 2)
    await connections.release(HOLDER)
    if containment.name == "namespace":
        await wait_until_gone(token)
    else:
        # A grandchild in its own session can't be found; `doctor` reports that.
        remaining = [pid for pid in list_processes(token) if os.getsid(pid) == pid]
        assert list_processes(token) == remaining
        for pid in remaining:
            os.kill(pid, signal.SIGKILL)


async def test_a_child_that_ignores_its_end_is_killed(
    connections: ConnectionPool,
    containment: ProcessContainment,
    token: str,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(stdio, "EOF_GRACE_S", 0.1)
    monkeypatch.setattr(child_process, "TERM_GRACE_S", 0.1)
    code = (
        "import json, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "asked = json.loads(sys.stdin.readline())\n"
        "found = {'supportedVersions': ['2026-07-28'], 'capabilities': {}}\n"
        "print(json.dumps({'jsonrpc': '2.0', 'id': asked['id'], 'result': found}), flush=True)\n"
        "time.sleep(600)\n"
    )
    endpoint = ServerEndpoint(
        **{**vars(faulty_stdio()), "args": ("-c", code, token)},
    )
    await connections.perform_handshake(endpoint, holder=HOLDER)
    assert list_processes(token)
    await connections.release(HOLDER)
    await wait_until_gone(token)


async def test_an_exit_is_detected_while_a_grandchild_keeps_the_output_open(
    connections: ConnectionPool, containment: ProcessContainment, token: str
):
    endpoint = faulty_stdio()
    await call(connections, endpoint, "grandchild", token=token, holds_output=True)
    async with asyncio.timeout(5):
        with pytest.raises(Exception, match="exited with status 3"):
            await call(connections, endpoint, "crash")
    await connections.release(HOLDER)
    for pid in list_processes(token):
        os.kill(pid, signal.SIGKILL)


WORKER = """
import asyncio, sys
from uuid import UUID
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import ConnectionPool

async def main():
    endpoint = ServerEndpoint(server_id=UUID(int=1), name="a", organization_id=UUID(int=1),
                        transport="stdio", command=sys.executable, args=tuple(sys.argv[1:]))
    params = {"name": "grandchild", "arguments": {"token": sys.argv[-1]}}
    await ConnectionPool().send_request(endpoint, "tools/call", params, holder="session:1")
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
async def worker(token: str) -> AsyncIterator[Callable[[], None]]:
    """Run a process with a child and a grandchild; yield a function that kills it."""
    command = [
        sys.executable,
        "-c",
        WORKER,
        str(SERVERS / "faulty_stdio_server.py"),
        "--token",
        token,
    ]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert (await process.stdout.readline()) == b"ready\n"
    yield process.kill
    await process.wait()
    for pid in list_processes(token):
        os.kill(pid, signal.SIGKILL)


async def test_children_and_grandchildren_die_with_a_killed_owner(
    worker: Callable[[], None], token: str
):
    if child_process.choose_containment().name != "namespace":
        pytest.skip("needs process namespaces, which this machine doesn't allow")
    await wait_until_running(token, 3)
    worker()
    await wait_until_gone(token)


async def test_many_children_leave_no_process_or_descriptor(
    connections: ConnectionPool, token: str
):
    endpoint = build_marked_endpoint(token)
    await call(connections, endpoint, "echo")
    await connections.release(HOLDER)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        await call(connections, endpoint, "echo", holder=f"session:{number}")
        await connections.release(f"session:{number}")
    await wait_until_gone(token)
    assert abs(len(list(Path("/proc/self/fd").iterdir())) - descriptors) <= 5


# --- choosing the containment


def test_the_available_tools_are_detected_once():
    containment = child_process.choose_containment()
    assert containment.name in ("namespace", "death-signal", "group")
    assert containment.guarantee
    assert containment is child_process.choose_containment()


def test_without_the_tools_the_process_group_is_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(child_process.shutil, "which", lambda name: None)
    assert child_process.choose_containment.__wrapped__() is GROUP


def test_on_other_systems_the_process_group_is_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(child_process.sys, "platform", "darwin")
    assert child_process.choose_containment.__wrapped__() is GROUP


@pytest.mark.parametrize("error", [OSError("no"), subprocess.TimeoutExpired("x", 1)])
def test_a_tool_that_fails_isnt_used(monkeypatch: pytest.MonkeyPatch, error: Exception):
    def run(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(child_process.subprocess, "run", run)
    assert child_process.choose_containment.__wrapped__() is GROUP


def test_signaling_an_ended_group_raises_nothing():
    process = subprocess.Popen(["true"], start_new_session=True)
    process.wait()
    child_process.send_group_signal(process.pid, signal.SIGKILL)
