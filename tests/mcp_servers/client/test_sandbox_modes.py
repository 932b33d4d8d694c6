"""Sandbox modes: what a sandboxed child can't do; it never runs in a weaker sandbox."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from mcp_servers.client import sandbox
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import ConnectionPool
from mcp_servers.client.sandbox import (
    Kind,
    Network,
    ServerSandbox,
    ServerSandboxUnavailable,
    find_sandbox_problem,
)
from tests.mcp_servers.client.endpoints import HOLDER, SERVERS, call, failure, stdio, text_of
from tests.mcp_servers.client.test_child_process import (
    list_processes,
    wait_until_gone,
    wait_until_running,
)

NETWORK = "sorted(name for _, name in socket.if_nameindex())"
LOOPBACK = "socket.create_server(('127.0.0.1', 0)).getsockname()[0]"


def build_sandboxed_endpoint(
    folder: Path, kind: Kind, network: Network = "host", **more: object
) -> ServerEndpoint:
    """Return the faulty server in its own folder and sandbox."""
    script = shutil.copy(SERVERS / "faulty_stdio_server.py", folder)
    sandbox = ServerSandbox(kind=kind, network=network, hidden=tuple(more.pop("hidden", ())))  # type: ignore[call-overload]
    return replace(stdio(sys.executable, script, **more), sandbox_mode=sandbox, cwd=str(folder))


async def evaluate(connections: ConnectionPool, endpoint: ServerEndpoint, expression: str) -> str:
    return text_of(await call(connections, endpoint, "attempt", expression=expression))


@pytest.fixture(params=["namespaces", "bubblewrap"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


# --- isolation


@pytest.mark.sandbox
async def test_a_server_without_network_has_only_its_own_loopback(
    connections: ConnectionPool, kind: Kind, tmp_path: Path
):
    endpoint = build_sandboxed_endpoint(tmp_path, kind, "none")
    assert await evaluate(connections, endpoint, NETWORK) == '["lo"]'
    assert await evaluate(connections, endpoint, LOOPBACK) == "127.0.0.1"
    outside = "socket.create_connection(('192.0.2.1', 80), 2) and 'reached'"
    assert await evaluate(connections, endpoint, outside) == "OSError"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        expression = f"socket.create_connection(('127.0.0.1', {port}), 2) and 'reached'"
        assert await evaluate(connections, endpoint, expression) == "ConnectionRefusedError"


@pytest.mark.sandbox
async def test_a_server_with_network_reaches_what_the_host_reaches(
    connections: ConnectionPool, kind: Kind, tmp_path: Path
):
    endpoint = build_sandboxed_endpoint(tmp_path, kind)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        expression = f"socket.create_connection(('127.0.0.1', {port}), 2) and 'reached'"
        assert await evaluate(connections, endpoint, expression) == "reached"


@pytest.mark.sandbox
async def test_the_environment_of_bonobot_cant_be_read(
    connections: ConnectionPool, kind: Kind, tmp_path: Path
):
    endpoint = build_sandboxed_endpoint(tmp_path, kind)
    expression = f"open('/proc/{os.getpid()}/environ', 'rb').read().hex()"
    assert await evaluate(connections, endpoint, expression) in (
        "FileNotFoundError",
        "PermissionError",
    )
    processes = "[n for n in os.listdir('/proc') if n.isdigit() and int(n) > 50]"
    assert await evaluate(connections, endpoint, processes) == "[]"


@pytest.mark.sandbox
async def test_a_sandboxed_server_has_no_privileges(
    connections: ConnectionPool, kind: Kind, tmp_path: Path
):
    endpoint = build_sandboxed_endpoint(tmp_path, kind)
    status = "[l for l in open('/proc/self/status') if l.startswith(('CapEff', 'NoNewPrivs'))]"
    output = await evaluate(connections, endpoint, status)
    assert "0000000000000000" in output
    assert "NoNewPrivs:\\t1" in output


@pytest.mark.sandbox
async def test_a_bubblewrapped_server_can_write_only_to_its_folder(
    connections: ConnectionPool, tmp_path: Path
):
    (folder := tmp_path / "own").mkdir()
    (hidden_folder := tmp_path / "ours").mkdir()
    (secret := hidden_folder / "key").write_text("canary")
    home = tmp_path / "home"
    home.mkdir()
    (home / "private").write_text("canary")
    endpoint = build_sandboxed_endpoint(
        folder, "bubblewrap", env={"HOME": str(home)}, hidden=(str(hidden_folder),)
    )
    endpoint = replace(endpoint, env_exceptions=frozenset({"HOME"}))
    assert await evaluate(connections, endpoint, "open('note', 'w').write('x')") == "1"
    assert (folder / "note").read_text() == "x"
    for path in ("/usr/x", "/var/x", "/etc/x"):
        assert await evaluate(connections, endpoint, f"open({path!r}, 'w')") == "OSError"
    assert await evaluate(connections, endpoint, f"os.listdir({str(home)!r})") == "[]"
    assert await evaluate(connections, endpoint, "os.listdir('/run')") == "[]"
    assert (
        await evaluate(connections, endpoint, f"open({str(secret)!r}).read()")
        == "FileNotFoundError"
    )
    temporary_file = Path("/tmp", f"bonobot-{uuid4()}")
    write = f"open({str(temporary_file)!r}, 'w').write('x')"
    assert await evaluate(connections, endpoint, write) == "1"
    assert not temporary_file.exists()


@pytest.mark.sandbox
async def test_a_bubblewrapped_server_cant_fill_the_memory_with_files(
    connections: ConnectionPool, tmp_path: Path
):
    (home := tmp_path / "home").mkdir()
    (folder := tmp_path / "own").mkdir()
    endpoint = build_sandboxed_endpoint(folder, "bubblewrap", env={"HOME": str(home)})
    endpoint = replace(endpoint, env_exceptions=frozenset({"HOME"}))
    for path in ("/tmp", "/run", str(home), "/dev/shm"):
        size = f"(lambda s: s.f_blocks * s.f_frsize)(os.statvfs({path!r}))"
        assert int(await evaluate(connections, endpoint, size)) <= 256 * 1024 * 1024
    assert await evaluate(connections, endpoint, "open('/dev/file', 'w')") == "OSError"


@pytest.mark.sandbox
async def test_bonobots_folder_is_hidden_inside_a_working_directory(
    connections: ConnectionPool, tmp_path: Path
):
    (hidden_folder := tmp_path / "var").mkdir()
    (hidden_folder / "key").write_text("canary")
    endpoint = build_sandboxed_endpoint(
        tmp_path, "bubblewrap", hidden=(str(hidden_folder), "/no/such/folder")
    )
    assert await evaluate(connections, endpoint, "os.listdir('var')") == "[]"


@pytest.mark.sandbox
async def test_a_bubblewrapped_server_without_a_folder_starts_in_an_empty_one(
    connections: ConnectionPool,
):
    code = "import os, sys; sys.exit(os.getcwd() + str(os.listdir()))"
    sandbox = ServerSandbox(kind="bubblewrap")
    endpoint = replace(stdio("/usr/bin/env", "python3", "-c", code), sandbox_mode=sandbox)
    error = await failure(connections.perform_handshake(endpoint, holder=HOLDER))
    assert "/tmp[" in str(error)


# --- nothing outlives the worker

WORKER = """
import asyncio, sys
from uuid import UUID
from mcp_servers.client.sandbox import ServerSandbox
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import ConnectionPool

async def main():
    folder, kind, token = sys.argv[1:]
    endpoint = ServerEndpoint(server_id=UUID(int=1), name="a", organization_id=UUID(int=1),
                        transport="stdio", command=sys.executable, cwd=folder,
                        args=("faulty_stdio_server.py", "--token", token),
                        sandbox_mode=ServerSandbox(kind=kind))
    params = {"name": "grandchild", "arguments": {"token": token}}
    await ConnectionPool().send_request(endpoint, "tools/call", params, holder="session:1")
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.sandbox
async def test_a_grandchild_in_its_own_session_dies_with_a_killed_worker(
    kind: Kind, tmp_path: Path
):
    endpoint = build_sandboxed_endpoint(tmp_path, kind)
    token = f"bonobot-test-{uuid4().hex}"
    command = [sys.executable, "-c", WORKER, endpoint.cwd, kind, token]
    worker = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert worker.stdout is not None
        assert (await worker.stdout.readline()) == b"ready\n"
        await wait_until_running(token, 3)
        worker.kill()
        await worker.wait()
        await wait_until_gone(token)
    finally:
        for pid in list_processes(token):
            os.kill(pid, signal.SIGKILL)


# --- machines without a sandbox


@pytest.fixture
def reset_detection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_working", set())


async def test_a_server_isnt_started_in_a_weaker_sandbox(
    connections: ConnectionPool, kind: Kind, reset_detection: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sandbox, "try_command", lambda *_: "Operation not permitted")
    endpoint = replace(stdio("sleep", "60"), sandbox_mode=ServerSandbox(kind=kind))
    error = await failure(connections.perform_handshake(endpoint, holder=HOLDER))
    assert (error.code, error.sent, error.field) == (
        "sandbox_unavailable",
        False,
        "sandbox",
    )
    assert "Operation not permitted" in str(error)
    assert error.remedy


@pytest.mark.parametrize(
    ("kind", "absent", "package"),
    [
        ("namespaces", "setpriv", "util-linux"),
        ("namespaces", "unshare", "util-linux"),
        ("bubblewrap", "bwrap", "bubblewrap"),
    ],
)
def test_a_missing_tool_is_reported_with_its_package(
    kind: Kind, absent: str, package: str, reset_detection: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        sandbox.shutil, "which", lambda tool: None if tool == absent else f"/bin/{tool}"
    )
    problem = find_sandbox_problem(kind)
    assert isinstance(problem, ServerSandboxUnavailable)
    assert package in problem.remedy


def test_on_other_systems_there_is_no_sandbox(
    reset_detection: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    assert "Linux" in str(find_sandbox_problem("bubblewrap"))


@pytest.mark.parametrize(
    ("switch", "value", "remedy"),
    [
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
        ("user/max_user_namespaces", "100", "container"),
    ],
)
def test_the_kernel_setting_that_prevents_the_sandbox_is_reported(
    switch: str,
    value: str,
    remedy: str,
    reset_detection: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    (tmp_path / switch).parent.mkdir(parents=True)
    (tmp_path / switch).write_text(f"{value}\n")
    monkeypatch.setattr(sandbox, "SYSCTL_FOLDER", tmp_path)
    monkeypatch.setattr(sandbox, "get_tool_path", lambda tool: shutil.which("false"))
    problem = find_sandbox_problem("namespaces")
    assert problem is not None
    assert remedy in problem.remedy


@pytest.mark.parametrize("error", [OSError("no"), subprocess.TimeoutExpired("x", 1)])
def test_a_tool_that_fails_is_reported(
    error: Exception, reset_detection: None, monkeypatch: pytest.MonkeyPatch
):
    def run(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(sandbox.subprocess, "run", run)
    assert type(error).__name__ in str(find_sandbox_problem("namespaces"))


@pytest.mark.sandbox
def test_the_available_sandbox_is_detected_once(kind: Kind, monkeypatch: pytest.MonkeyPatch):
    assert find_sandbox_problem(kind) is None
    monkeypatch.setattr(sandbox, "try_command", lambda *_: "again")
    assert find_sandbox_problem(kind) is None
