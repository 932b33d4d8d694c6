"""The sandbox of an organization's stdio servers, and its egress proxy."""

import asyncio
import json
import os
import shutil
import socketserver
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bonobot.core.http import network_backend
from mcp_servers.client import egress_proxy, sandbox
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import ConnectionPool
from mcp_servers.client.sandbox import (
    Network,
    Sandbox,
    ServerSandboxUnavailable,
    list_named_folders,
)
from tests.mcp_servers.client.endpoints import HOLDER, SERVERS, call, failure, stdio, text_of

CANARY = "canary-of-this-machine"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Return the server's folder, with its program in it."""
    folder = tmp_path / "var" / "workspaces" / "acme"
    folder.mkdir(parents=True)
    shutil.copy(SERVERS / "faulty_stdio_server.py", folder)
    return folder


def build_sandboxed_endpoint(
    workspace: Path, network: Network = "egress", **more: bool
) -> ServerEndpoint:
    """Return the faulty server in the sandbox of an organization."""
    var = workspace.parents[1]
    sandbox = Sandbox(
        home=str(var / "sandboxes" / "acme" / "home"),
        network=network,
        folders=(str(workspace),),
        hidden=(str(var),),
        **more,
    )
    endpoint = stdio(
        sys.executable, str(workspace / "faulty_stdio_server.py"), env={"TOKEN": "given"}
    )
    return replace(endpoint, sandbox=sandbox)


async def evaluate(connections: ConnectionPool, endpoint: ServerEndpoint, expression: str) -> str:
    return text_of(await call(connections, endpoint, "attempt", expression=expression))


# --- isolation


@pytest.mark.sandbox
async def test_files_of_bonobot_and_its_user_are_invisible(
    connections: ConnectionPool, workspace: Path, tmp_path: Path
) -> None:
    var = workspace.parents[1]
    other_workspace = var / "workspaces" / "others"
    for folder in (other_workspace, var / "keys", tmp_path / "elsewhere"):
        folder.mkdir()
        (folder / "secret").write_text(CANARY)
    (var / "bonobot.sqlite3").write_text(CANARY)
    endpoint = build_sandboxed_endpoint(workspace)
    hidden = [
        *(var / "keys" / "secret", var / "bonobot.sqlite3", other_workspace / "secret"),
        *(tmp_path / "elsewhere" / "secret", Path("/etc/passwd"), Path("/etc/shadow")),
        *(Path.home() / ".bashrc", Path("/root/.bashrc"), Path(f"/proc/{os.getpid()}/environ")),
        *(
            Path("/var/run/docker.sock"),
            Path("/run/docker.sock"),
            SERVERS / "faulty_stdio_server.py",
        ),
    ]
    for path in hidden:
        output = await evaluate(connections, endpoint, f"open({str(path)!r}).read()")
        assert output in ("FileNotFoundError", "PermissionError", "NotADirectoryError"), (
            path,
            output,
        )
    assert (
        await evaluate(connections, endpoint, f"sorted(os.listdir({str(var)!r}))")
        == '["workspaces"]'
    )
    assert await evaluate(connections, endpoint, "os.listdir('/run')") == '["bonobot"]'
    processes = "[n for n in os.listdir('/proc') if n.isdigit() and int(n) > 50]"
    assert await evaluate(connections, endpoint, processes) == "[]"


@pytest.mark.sandbox
async def test_certificates_are_visible_but_no_folder_of_private_keys(
    connections: ConnectionPool, workspace: Path
) -> None:
    endpoint = build_sandboxed_endpoint(workspace)
    look = "[p for p in {!r} if __import__('os').path.exists(p)]"
    keys = ["/etc/ssl/private", "/etc/pki/tls/private", "/etc/pki/consumer"]
    keys += ["/etc/pki/entitlement", "/etc/pki/nssdb", "/etc/letsencrypt", "/etc/docker"]
    assert await evaluate(connections, endpoint, look.format(keys)) == "[]"
    certificates = ["/etc/ssl/certs", "/etc/pki/ca-trust"]
    assert await evaluate(connections, endpoint, look.format(certificates)) != "[]"


async def test_only_its_folders_home_and_tmp_are_writable(
    connections: ConnectionPool, workspace: Path
) -> None:
    endpoint = build_sandboxed_endpoint(workspace)
    for path in ("/usr/x", "/etc/x", "/x", "/dev/x", "/home/x", f"{sys.prefix}/x"):
        output = await evaluate(connections, endpoint, f"open({path!r}, 'w').write('x')")
        assert output in ("OSError", "PermissionError"), (path, output)
    await evaluate(connections, endpoint, f"open({str(workspace.parent / 'x')!r}, 'w').write('x')")
    assert not (workspace.parent / "x").exists()
    for path in (str(workspace / "note"), sandbox.HOME + "/cached", "/tmp/scratch"):
        assert await evaluate(connections, endpoint, f"open({path!r}, 'w').write('x')") == "1", path
    assert (workspace / "note").read_text() == "x"
    assert (workspace.parents[1] / "sandboxes" / "acme" / "home" / "cached").read_text() == "x"
    assert not Path("/tmp/scratch").exists()


@pytest.mark.sandbox
async def test_child_programs_run_in_the_same_sandbox(
    connections: ConnectionPool, workspace: Path
) -> None:
    """For example, a kubeconfig's `exec` or a Git hook that the server wrote."""
    var = workspace.parents[1]
    (var / "keys").mkdir()
    (var / "keys" / "secret").write_text(CANARY)
    hook = workspace / "hook.sh"
    hook.write_text(f"#!/bin/sh\ncat {var}/keys/secret /etc/shadow; id -u >{workspace}/ran\n")
    hook.chmod(0o755)
    run = f"__import__('subprocess').run([{str(hook)!r}], capture_output=True).stdout.decode()"
    assert CANARY not in await evaluate(connections, build_sandboxed_endpoint(workspace), run)
    assert (workspace / "ran").exists()


@pytest.mark.sandbox
async def test_the_environment_of_the_host_isnt_inherited(
    connections: ConnectionPool, workspace: Path
) -> None:
    endpoint = build_sandboxed_endpoint(workspace)
    output = await evaluate(connections, endpoint, "dict(os.environ)")
    assert '"HOME": "/home/server"' in output
    assert '"TOKEN": "given"' in output
    for text in ("BONOBOT", "DATABASE_URL", "DJANGO", str(Path.home()) + '"'):
        assert text not in output


@pytest.mark.sandbox
async def test_a_sandboxed_program_has_no_privileges_and_cant_get_any(
    connections: ConnectionPool, workspace: Path
) -> None:
    status = "[l for l in open('/proc/self/status') if l.startswith(('CapEff', 'NoNewPrivs'))]"
    output = await evaluate(connections, build_sandboxed_endpoint(workspace), status)
    assert "0000000000000000" in output
    assert "NoNewPrivs:\\t1" in output


@pytest.mark.sandbox
@pytest.mark.parametrize("part", ["acme", "workspaces"])
async def test_a_folder_that_was_replaced_by_a_symlink_isnt_visible(
    connections: ConnectionPool, workspace: Path, part: str
) -> None:
    """A server can replace folders in its workspace while another server is stopped."""
    var = workspace.parents[1]
    (var / "keys" / "acme").mkdir(parents=True)
    (var / "keys" / "acme" / "secret").write_text(CANARY)
    endpoint = replace(
        build_sandboxed_endpoint(workspace),
        command="/usr/bin/python3",
        args=("-c", "while input(): 0"),
    )
    folder = workspace if part == "acme" else workspace.parent
    folder.rename(var / "moved")
    folder.symlink_to(var / "keys" / ("acme" if part == "acme" else ""))
    error = await failure(connections.perform_handshake(endpoint, holder=HOLDER))
    assert (error.code, error.sent) == ("server_unreachable", False)
    assert "is no longer a folder" in str(error)


@pytest.mark.sandbox
async def test_no_descriptor_of_the_host_is_inherited(
    connections: ConnectionPool, workspace: Path
) -> None:
    """An inherited descriptor of a folder would lead out of the sandbox with `..`."""
    (workspace.parents[1] / "canary").write_text(CANARY)
    expression = (
        "[(pid, fd, os.readlink(f'/proc/{pid}/fd/{fd}')) for pid in os.listdir('/proc') "
        "if pid.isdigit() and os.access(f'/proc/{pid}/fd', os.X_OK) "
        "for fd in os.listdir(f'/proc/{pid}/fd') if os.path.isdir(f'/proc/{pid}/fd/{fd}')]"
    )
    for network in ("egress", "none"):
        output = await evaluate(
            connections, build_sandboxed_endpoint(workspace, network), expression
        )
        assert [
            descriptor for descriptor in json.loads(output) if "/proc" not in descriptor[2]
        ] == [], output


# --- the network


class Greeting(BaseHTTPRequestHandler):
    """Responds to every HTTP request with a greeting."""

    def do_GET(self) -> None:
        body = f"greeted {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Don't log."""


@pytest.fixture
def web() -> Iterator[int]:
    """Run a web server on the loopback; yield its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Greeting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


FETCH = "__import__('urllib.request').request.urlopen({url!r}, timeout=10).read().decode()"
STATUS = (
    "(lambda c: (c.request('GET', {url!r}), c.getresponse().status)[1])"
    "(__import__('http.client').client.HTTPConnection('127.0.0.1', 3128, timeout=20))"
)
TUNNEL = (
    "(lambda s: (s.sendall(b'CONNECT {to} HTTP/1.1\\r\\n\\r\\n'), s.recv(12).decode())[1])"
    "(socket.create_connection(('127.0.0.1', 3128), 20))"
)


@pytest.mark.sandbox
@pytest.mark.parametrize("network", ["egress", "none"])
async def test_the_host_and_the_network_cant_be_reached_directly(
    connections: ConnectionPool, workspace: Path, web: int, network: Network
) -> None:
    endpoint = build_sandboxed_endpoint(workspace, network)
    for host, port in (("127.0.0.1", web), ("192.0.2.1", 80), ("8.8.8.8", 53)):
        expression = f"socket.create_connection(({host!r}, {port}), 2) and 'reached'"
        output = await evaluate(connections, endpoint, expression)
        assert output in ("ConnectionRefusedError", "OSError", "TimeoutError"), (host, output)
    names = "sorted(name for _, name in socket.if_nameindex())"
    assert await evaluate(connections, endpoint, names) == '["lo"]'


@pytest.mark.sandbox
@pytest.mark.parametrize("allow_private", [False, True])
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "0.0.0.0",  # noqa: S104 - an address that is asked for
        "127.1",
        "[::ffff:127.0.0.1]",
        "169.254.169.254",
    ],
)
async def test_the_egress_proxy_never_connects_to_the_host(
    connections: ConnectionPool, workspace: Path, web: int, host: str, allow_private: bool
) -> None:
    endpoint = build_sandboxed_endpoint(workspace, allow_private=allow_private)
    output = await evaluate(connections, endpoint, STATUS.format(url=f"http://{host}:{web}/"))
    assert output in ("403", "400", "502"), output
    assert " 200" not in await evaluate(connections, endpoint, TUNNEL.format(to=f"{host}:{web}"))


def resolve_to_local_port(
    monkeypatch: pytest.MonkeyPatch, address: tuple[str, int], port: int
) -> None:
    """Resolve every name to a public address that connects to a local port."""

    async def resolve(host: str, port: int) -> list[str]:
        assert host.endswith(".example.com") or host == address[0]
        return [address[0]]

    async def connect(self: object, host: str, number: int, *_: object) -> object:
        assert (host, number) == address
        return await plain(self, "127.0.0.1", port, 5.0)

    plain = network_backend.AsyncioNetworkBackend.connect_tcp
    monkeypatch.setattr(egress_proxy, "resolve_host", resolve)
    monkeypatch.setattr(network_backend.AsyncioNetworkBackend, "connect_tcp", connect)


@pytest.mark.sandbox
async def test_a_public_address_is_reached_through_the_egress_proxy(
    connections: ConnectionPool, workspace: Path, web: int, monkeypatch: pytest.MonkeyPatch
) -> None:

    resolve_to_local_port(monkeypatch, ("93.184.216.34", 8080), web)
    endpoint = build_sandboxed_endpoint(workspace)
    url = "http://files.example.com:8080/notes?a=1"
    assert await evaluate(connections, endpoint, FETCH.format(url=url)) == "greeted /notes?a=1"
    assert "200" in await evaluate(
        connections, endpoint, TUNNEL.format(to="files.example.com:8080")
    )


@pytest.fixture
def database() -> Iterator[int]:
    """Run a server that sends the first message, as databases do; yield its port."""

    class Greeter(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"ready ")
            self.request.sendall(self.request.recv(100))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


CLOSED = ("", "ConnectionResetError")
QUERY = (
    "(lambda s: (s.sendall(b'query'), s.makefile().read(11))[1])"
    "(socket.create_connection(({host!r}, {port}), 10))"
)


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("env", "host"),
    [
        ({"URI": "postgresql://u:p@ss@db.example.com:6543/x"}, "db.example.com"),
        ({"HOSTS": "mongodb://u@one.example.com:1,db.example.com:6543/"}, "db.example.com"),
        ({"REDIS_HOST": "DB.example.com", "REDIS_PORT": "6543"}, "db.example.com"),
        ({"URI": "bolt://93.184.216.34:6543"}, "93.184.216.34"),
    ],
)
async def test_a_configured_database_is_reached_by_the_egress_rules(
    connections: ConnectionPool,
    workspace: Path,
    database: int,
    monkeypatch: pytest.MonkeyPatch,
    env: dict[str, str],
    host: str,
) -> None:
    resolve_to_local_port(monkeypatch, ("93.184.216.34", 6543), database)
    endpoint = replace(build_sandboxed_endpoint(workspace), env=env)
    if host == "93.184.216.34":
        assert await evaluate(connections, endpoint, "os.environ['URI']") == "bolt://127.0.0.2:6543"
        host = "127.0.0.2"
    assert (
        await evaluate(connections, endpoint, QUERY.format(host=host, port=6543)) == "ready query"
    )


@pytest.mark.sandbox
async def test_a_database_at_a_private_address_is_refused_with_the_reason_in_the_log(
    connections: ConnectionPool, workspace: Path
) -> None:
    endpoint = replace(build_sandboxed_endpoint(workspace), env={"URI": "redis://10.1.2.3:6379/0"})
    assert (
        await evaluate(connections, endpoint, QUERY.format(host="127.0.0.2", port=6379)) in CLOSED
    )
    assert "No connection to 10.1.2.3:6379: " in connections.get_stderr_tail(endpoint.server_id)


@pytest.mark.sandbox
async def test_without_network_there_is_no_proxy(
    connections: ConnectionPool, workspace: Path
) -> None:
    endpoint = build_sandboxed_endpoint(workspace, "none")
    assert "PROXY" not in await evaluate(connections, endpoint, "sorted(os.environ)")
    assert await evaluate(connections, endpoint, "os.listdir('/run')") in (
        "[]",
        "FileNotFoundError",
    )


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET http://user@example.com/ HTTP/1.1\r\n\r\n",
        b"CONNECT example.com HTTP/1.1\r\n\r\n",
        b"CONNECT example.com:0 HTTP/1.1\r\n\r\n",
        b"CONNECT :443 HTTP/1.1\r\n\r\n",
        b"CONNECT example.com:443 SPDY/3\r\n\r\n",
        b"GET https://example.com/ HTTP/1.1\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_requests_that_arent_for_a_proxy_are_refused(head: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of them is answered with 400
        egress_proxy.parse_head(head)


def test_a_plain_request_is_forwarded_without_proxy_headers() -> None:
    head = (
        b"POST http://example.com/a?b HTTP/1.1\r\nHost: example.com\r\nProxy-Authorization: x\r\n"
    )
    request = egress_proxy.parse_head(head + b"Connection: keep-alive\r\nContent-Length: 2\r\n\r\n")
    assert (request.host, request.port, request.tunnel) == ("example.com", 80, False)
    assert request.head == (
        b"POST /a?b HTTP/1.1\r\nHost: example.com\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
    )


# --- folders


def test_only_allowed_folders_are_visible(tmp_path: Path) -> None:
    (allowed := tmp_path / "allowed").mkdir()
    (inner := allowed / "inner").mkdir()
    (outside := tmp_path / "outside").mkdir()
    (allowed / "link").symlink_to(outside)
    values = [
        *(str(inner), f"--config={inner}/kubeconfig", "/etc/passwd", str(outside), "relative"),
        *(str(allowed / "link"), f"{inner}/../../outside", "/", "-y", "/no/such/folder/file"),
    ]
    assert list_named_folders(values, [allowed]) == (str(inner),)
    assert list_named_folders(values, [tmp_path / "absent"]) == ()


# --- machines without a sandbox


@pytest.fixture
def unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def require() -> None:
        raise ServerSandboxUnavailable(
            "`bwrap` isn't installed", "Install the package `bubblewrap`."
        )

    monkeypatch.setattr(sandbox, "check_sandbox_works", require)


async def test_without_a_sandbox_servers_of_organizations_dont_start(
    connections: ConnectionPool, workspace: Path, unavailable: None
) -> None:
    error = await failure(
        connections.perform_handshake(build_sandboxed_endpoint(workspace), holder=HOLDER)
    )
    assert (error.code, error.sent, error.status) == ("sandbox_unavailable", False, 503)
    assert "`bwrap` isn't installed" in str(error)
    assert error.remedy == "Install the package `bubblewrap`."


async def test_with_a_single_organization_servers_start_with_the_available_sandbox(
    connections: ConnectionPool, workspace: Path, unavailable: None
) -> None:
    endpoint = build_sandboxed_endpoint(workspace, required=False)
    assert await evaluate(connections, endpoint, "os.path.exists('/etc/passwd')") == "true"


async def test_a_closed_proxy_leaves_no_socket() -> None:
    proxy = egress_proxy.EgressProxy("a server", allow_private=False)
    await proxy.open()
    assert Path(proxy.socket_path).is_socket()
    await proxy.close()
    assert not Path(proxy.socket_path).parent.exists()


async def test_a_proxy_remembers_which_connection_it_denied() -> None:
    proxy = egress_proxy.EgressProxy("a server", allow_private=False)
    await proxy.open()
    try:
        reader, writer = await asyncio.open_unix_connection(proxy.socket_path)
        writer.write(b"CONNECT 10.0.0.1:443 HTTP/1.1\r\n\r\n")
        assert b" 403 " in await reader.readline()
        writer.close()
        assert proxy.refusal
        assert proxy.refusal.code == "private_address"
    finally:
        await proxy.close()
