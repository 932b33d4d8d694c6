"""The sandbox of an organization's stdio servers: what is not in it, and the one way out."""

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
from mcp_servers.client.sandbox import Sandbox, list_named_folders
from mcp_servers.client.sandbox_modes import Network, ServerSandboxUnavailable
from tests.mcp_servers.client.endpoints import HOLDER, SERVERS, call, failure, stdio, text_of

CANARY = "canary-of-this-machine"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder that the server was given, with its program in it."""
    folder = tmp_path / "var" / "workspaces" / "acme"
    folder.mkdir(parents=True)
    shutil.copy(SERVERS / "faulty_stdio_server.py", folder)
    return folder


def sandboxed(own: Path, network: Network = "egress", **more: bool) -> ServerEndpoint:
    """Return the scripted server in the sandbox of an organization."""
    var = own.parents[1]
    box = Sandbox(
        home=str(var / "sandboxes" / "acme" / "home"),
        network=network,
        folders=(str(own),),
        hidden=(str(var),),
        **more,
    )
    endpoint = stdio(sys.executable, str(own / "faulty_stdio_server.py"), env={"TOKEN": "given"})
    return replace(endpoint, sandbox=box)


async def told(connections: ConnectionPool, endpoint: ServerEndpoint, expression: str) -> str:
    return text_of(await call(connections, endpoint, "attempt", expression=expression))


# --- what isn't in it


@pytest.mark.sandbox
async def test_files_of_bonobot_and_its_user_are_invisible(
    connections: ConnectionPool, own: Path, tmp_path: Path
) -> None:
    var = own.parents[1]
    others = var / "workspaces" / "others"
    for folder in (others, var / "keys", tmp_path / "elsewhere"):
        folder.mkdir()
        (folder / "secret").write_text(CANARY)
    (var / "bonobot.sqlite3").write_text(CANARY)
    endpoint = sandboxed(own)
    hidden = [
        *(var / "keys" / "secret", var / "bonobot.sqlite3", others / "secret"),
        *(tmp_path / "elsewhere" / "secret", Path("/etc/passwd"), Path("/etc/shadow")),
        *(Path.home() / ".bashrc", Path("/root/.bashrc"), Path(f"/proc/{os.getpid()}/environ")),
        *(
            Path("/var/run/docker.sock"),
            Path("/run/docker.sock"),
            SERVERS / "faulty_stdio_server.py",
        ),
    ]
    for path in hidden:
        said = await told(connections, endpoint, f"open({str(path)!r}).read()")
        assert said in ("FileNotFoundError", "PermissionError", "NotADirectoryError"), (path, said)
    assert (
        await told(connections, endpoint, f"sorted(os.listdir({str(var)!r}))") == '["workspaces"]'
    )
    assert await told(connections, endpoint, "os.listdir('/run')") == '["bonobot"]'
    everybody = "[n for n in os.listdir('/proc') if n.isdigit() and int(n) > 50]"
    assert await told(connections, endpoint, everybody) == "[]"


@pytest.mark.sandbox
async def test_only_its_folders_home_and_tmp_are_writable(
    connections: ConnectionPool, own: Path
) -> None:
    endpoint = sandboxed(own)
    for path in ("/usr/x", "/etc/x", "/x", "/dev/x", "/home/x", f"{sys.prefix}/x"):
        said = await told(connections, endpoint, f"open({path!r}, 'w').write('x')")
        assert said in ("OSError", "PermissionError"), (path, said)
    await told(connections, endpoint, f"open({str(own.parent / 'x')!r}, 'w').write('x')")
    assert not (own.parent / "x").exists()
    for path in (str(own / "note"), sandbox.HOME + "/cached", "/tmp/scratch"):
        assert await told(connections, endpoint, f"open({path!r}, 'w').write('x')") == "1", path
    assert (own / "note").read_text() == "x"
    assert (own.parents[1] / "sandboxes" / "acme" / "home" / "cached").read_text() == "x"
    assert not Path("/tmp/scratch").exists()


@pytest.mark.sandbox
async def test_child_programs_run_in_the_same_sandbox(
    connections: ConnectionPool, own: Path
) -> None:
    """What is written there and then run: a kubeconfig's `exec`, a hook of git."""
    var = own.parents[1]
    (var / "keys").mkdir()
    (var / "keys" / "secret").write_text(CANARY)
    hook = own / "hook.sh"
    hook.write_text(f"#!/bin/sh\ncat {var}/keys/secret /etc/shadow; id -u >{own}/ran\n")
    hook.chmod(0o755)
    run = f"__import__('subprocess').run([{str(hook)!r}], capture_output=True).stdout.decode()"
    assert CANARY not in await told(connections, sandboxed(own), run)
    assert (own / "ran").exists()


@pytest.mark.sandbox
async def test_the_environment_of_the_host_isnt_inherited(
    connections: ConnectionPool, own: Path
) -> None:
    endpoint = sandboxed(own)
    said = await told(connections, endpoint, "dict(os.environ)")
    assert '"HOME": "/home/server"' in said
    assert '"TOKEN": "given"' in said
    for ours in ("BONOBOT", "DATABASE_URL", "DJANGO", str(Path.home()) + '"'):
        assert ours not in said


@pytest.mark.sandbox
async def test_a_sandboxed_program_has_no_privileges_and_cant_get_any(
    connections: ConnectionPool, own: Path
) -> None:
    status = "[l for l in open('/proc/self/status') if l.startswith(('CapEff', 'NoNewPrivs'))]"
    said = await told(connections, sandboxed(own), status)
    assert "0000000000000000" in said
    assert "NoNewPrivs:\\t1" in said


@pytest.mark.sandbox
@pytest.mark.parametrize("part", ["acme", "workspaces"])
async def test_a_folder_that_was_replaced_by_a_symlink_isnt_visible(
    connections: ConnectionPool, own: Path, part: str
) -> None:
    """A server writes in its folder while another one is stopped, and moves things there."""
    var = own.parents[1]
    (var / "keys" / "acme").mkdir(parents=True)
    (var / "keys" / "acme" / "secret").write_text(CANARY)
    endpoint = replace(sandboxed(own), command="/usr/bin/python3", args=("-c", "while input(): 0"))
    folder = own if part == "acme" else own.parent
    folder.rename(var / "moved")
    folder.symlink_to(var / "keys" / ("acme" if part == "acme" else ""))
    error = await failure(connections.perform_handshake(endpoint, holder=HOLDER))
    assert (error.code, error.sent) == ("server_unreachable", False)
    assert "is no longer a folder" in str(error)


@pytest.mark.sandbox
async def test_no_descriptor_of_the_host_is_inherited(
    connections: ConnectionPool, own: Path
) -> None:
    """Through a folder that is open outside of the sandbox, `..` would lead out of it."""
    (own.parents[1] / "canary").write_text(CANARY)
    held = (
        "[(pid, fd, os.readlink(f'/proc/{pid}/fd/{fd}')) for pid in os.listdir('/proc') "
        "if pid.isdigit() and os.access(f'/proc/{pid}/fd', os.X_OK) "
        "for fd in os.listdir(f'/proc/{pid}/fd') if os.path.isdir(f'/proc/{pid}/fd/{fd}')]"
    )
    for network in ("egress", "none"):
        said = await told(connections, sandboxed(own, network), held)
        assert [one for one in json.loads(said) if "/proc" not in one[2]] == [], said


# --- the network


class Greeting(BaseHTTPRequestHandler):
    """Greets over HTTP, whatever is asked."""

    def do_GET(self) -> None:
        body = f"greeted {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def web() -> Iterator[int]:
    """Run a web server on this machine's loopback; yield its port."""
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
    connections: ConnectionPool, own: Path, web: int, network: Network
) -> None:
    endpoint = sandboxed(own, network)
    for host, port in (("127.0.0.1", web), ("192.0.2.1", 80), ("8.8.8.8", 53)):
        reach = f"socket.create_connection(({host!r}, {port}), 2) and 'reached'"
        said = await told(connections, endpoint, reach)
        assert said in ("ConnectionRefusedError", "OSError", "TimeoutError"), (host, said)
    names = "sorted(name for _, name in socket.if_nameindex())"
    assert await told(connections, endpoint, names) == '["lo"]'


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
    connections: ConnectionPool, own: Path, web: int, host: str, allow_private: bool
) -> None:
    endpoint = sandboxed(own, allow_private=allow_private)
    said = await told(connections, endpoint, STATUS.format(url=f"http://{host}:{web}/"))
    assert said in ("403", "400", "502"), said
    assert " 200" not in await told(connections, endpoint, TUNNEL.format(to=f"{host}:{web}"))


def stand_in(monkeypatch: pytest.MonkeyPatch, address: tuple[str, int], port: int) -> None:
    """Have every name resolve to a public address, behind which a port of this machine answers."""

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
    connections: ConnectionPool, own: Path, web: int, monkeypatch: pytest.MonkeyPatch
) -> None:

    stand_in(monkeypatch, ("93.184.216.34", 8080), web)
    endpoint = sandboxed(own)
    url = "http://files.example.com:8080/notes?a=1"
    assert await told(connections, endpoint, FETCH.format(url=url)) == "greeted /notes?a=1"
    assert "200" in await told(connections, endpoint, TUNNEL.format(to="files.example.com:8080"))


@pytest.fixture
def database() -> Iterator[int]:
    """Run a server that greets first, as databases do; yield its port."""

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
    own: Path,
    database: int,
    monkeypatch: pytest.MonkeyPatch,
    env: dict[str, str],
    host: str,
) -> None:
    stand_in(monkeypatch, ("93.184.216.34", 6543), database)
    endpoint = replace(sandboxed(own), env=env)
    if host == "93.184.216.34":
        assert await told(connections, endpoint, "os.environ['URI']") == "bolt://127.0.0.2:6543"
        host = "127.0.0.2"
    assert await told(connections, endpoint, QUERY.format(host=host, port=6543)) == "ready query"


@pytest.mark.sandbox
async def test_a_database_at_a_private_address_is_refused_with_the_reason_in_the_log(
    connections: ConnectionPool, own: Path
) -> None:
    endpoint = replace(sandboxed(own), env={"URI": "redis://10.1.2.3:6379/0"})
    assert await told(connections, endpoint, QUERY.format(host="127.0.0.2", port=6379)) in CLOSED
    assert "No connection to 10.1.2.3:6379: " in connections.get_stderr_tail(endpoint.server_id)


@pytest.mark.sandbox
async def test_without_network_there_is_no_proxy(connections: ConnectionPool, own: Path) -> None:
    endpoint = sandboxed(own, "none")
    assert "PROXY" not in await told(connections, endpoint, "sorted(os.environ)")
    assert await told(connections, endpoint, "os.listdir('/run')") in ("[]", "FileNotFoundError")


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
    asked = egress_proxy.parse_head(head + b"Connection: keep-alive\r\nContent-Length: 2\r\n\r\n")
    assert (asked.host, asked.port, asked.tunnel) == ("example.com", 80, False)
    assert asked.head == (
        b"POST /a?b HTTP/1.1\r\nHost: example.com\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
    )


# --- its folders


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


# --- what this machine can't do


@pytest.fixture
def unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def require() -> None:
        raise ServerSandboxUnavailable(
            "`bwrap` isn't installed", "Install the package `bubblewrap`."
        )

    monkeypatch.setattr(sandbox, "check_sandbox_works", require)


async def test_without_a_sandbox_servers_of_organizations_dont_start(
    connections: ConnectionPool, own: Path, unavailable: None
) -> None:
    error = await failure(connections.perform_handshake(sandboxed(own), holder=HOLDER))
    assert (error.code, error.sent, error.status) == ("sandbox_unavailable", False, 503)
    assert "`bwrap` isn't installed" in str(error)
    assert error.remedy == "Install the package `bubblewrap`."


async def test_with_a_single_organization_servers_start_with_the_available_sandbox(
    connections: ConnectionPool, own: Path, unavailable: None
) -> None:
    endpoint = sandboxed(own, required=False)
    assert await told(connections, endpoint, "os.path.exists('/etc/passwd')") == "true"


async def test_a_closed_proxy_leaves_no_socket() -> None:
    proxy = egress_proxy.EgressProxy("a server", allow_private=False)
    await proxy.open()
    assert Path(proxy.socket_path).is_socket()
    await proxy.close()
    assert not Path(proxy.socket_path).parent.exists()
