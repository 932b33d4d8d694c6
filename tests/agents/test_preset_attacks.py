"""Attacks on shipped presets with values and calls of an organization: none leaves its sandbox.

Each attack runs the preset's real program with the preset's arguments; only the launcher (`npx`,
`uvx`) is replaced by the program it would have installed.
"""

import shutil
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from pytest_django import Settings

from agents.calls.pipeline import CallOutcome
from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
from mcp_servers.presets.allowed_folders import get_organization_folder
from mcp_servers.presets.enabled_presets import enable_preset
from mcp_servers.presets.services import build_server_spec, get_preset
from mcp_servers.presets.sync_catalog import load_presets
from mcp_servers.services import create_server
from tests import factories
from tests.parts import FIRST_SDK, NODE_SERVERS

pytestmark = [
    pytest.mark.whole,
    pytest.mark.sandbox,
    pytest.mark.npm,
    pytest.mark.sdk1,
    pytest.mark.django_db(transaction=True),
]

CANARY = "canary-of-this-machine"
# The package `kubernetes-mcp-server` only starts the program of one of its platforms' packages.
KUBERNETES = NODE_SERVERS.parent / "kubernetes-mcp-server-linux-amd64" / "bin"
PLATFORM_PROGRAMS = {"kubernetes-mcp-server": KUBERNETES / "kubernetes-mcp-server-linux-amd64"}
Start = Callable[..., Server]


@pytest.fixture
def workspace(acme: Organization) -> Iterator[Path]:
    """The organization's workspace."""
    folder = get_organization_folder(acme.pk)
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def secrets(workspace: Path) -> Iterator[list[Path]]:
    """Bonobot's key, another organization's file and a file elsewhere; each holds the canary."""
    var = Path(django_settings.BONOBOT_VAR)
    files = [
        var / "keys" / "canary",
        workspace.parent / "others" / "canary",
        workspace.parent / "canary",
    ]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(CANARY)
    yield files
    for file in files:
        file.unlink()


@pytest.fixture
def start(acme: Organization, helper: Agent, settings: Settings) -> Iterator[Start]:
    """Return a function that creates a server from a preset for the organization."""
    settings.BONOBOT_STDIO_SANDBOX = "sandbox"
    factories.create_organization("others")  # with several organizations every server is sandboxed
    load_presets()
    administrator = factories.build_administrator(acme)
    servers: list[Server] = []

    def start_preset(slug: str, **values: str) -> Server:
        preset = get_preset(administrator, slug)
        enable_preset(administrator, preset)
        spec = build_server_spec(administrator, preset, values, name=slug)
        command_line = [str(spec.endpoint_config["command"]), *spec.endpoint_config["args"]]
        command, *args = replace_launcher(command_line, preset.program)
        settings.BONOBOT_LAUNCHERS = (*settings.BONOBOT_LAUNCHERS, command)
        config = {**spec.endpoint_config, "command": command, "args": args}
        server = create_server(administrator, replace(spec, endpoint_config=config))
        assert (server.sandbox, server.network) == ("sandbox", "egress")
        servers.append(factories.approve_server(acme, server, helper))
        return server

    yield start_preset
    for server in servers:
        get_runtime().call(get_connection_pool().forget_server, server.pk)


def replace_launcher(command_line: Sequence[str], program: str) -> list[str]:
    """Replace the launcher of a command line with the installed program."""
    folder = NODE_SERVERS if command_line[0] == "npx" else FIRST_SDK.parent
    if not (folder / program).exists():
        folder = Path(sys.executable).parent
    path = PLATFORM_PROGRAMS.get(program, folder / program)
    package = next(n for n, word in enumerate(command_line) if n and "@" in word)
    return [str(path), *command_line[package + 1 :]]


def test_a_program_of_a_written_kubeconfig_runs_in_the_sandbox(
    start: Start, call: Callable[..., CallOutcome], workspace: Path, secrets: list[Path]
) -> None:
    """One server writes the program that another server runs."""
    start("filesystem", FOLDER=str(workspace))
    stolen = workspace / "stolen"
    script = f"#!/bin/sh\ncat {' '.join(map(str, secrets))} >{stolen}; echo ran >>{stolen}\n"
    for name, text in (
        ("exec.sh", script),
        ("config", KUBECONFIG.format(script=workspace / "exec.sh")),
    ):
        call("mcp_filesystem_write_file", {"path": str(workspace / name), "content": text})
    start("kubernetes", KUBECONFIG=str(workspace / "config"))
    call("mcp_kubernetes_namespaces_list", {})
    assert stolen.read_text() == "ran\n"


def test_files_outside_the_workspace_cant_be_read(
    start: Start, call: Callable[..., CallOutcome], workspace: Path, secrets: list[Path]
) -> None:
    start("filesystem", FOLDER=str(workspace))
    for number, secret in enumerate(secrets):
        link = workspace / f"link{number}"
        link.symlink_to(secret)
        for path in (secret, link):
            assert CANARY not in call("mcp_filesystem_read_text_file", {"path": str(path)}).text
    (workspace / "note").write_text("own")
    own_file = call("mcp_filesystem_read_text_file", {"path": str(workspace / "note")})
    assert own_file.text == "own"


def test_a_database_cant_attach_or_write_files_outside_its_folder(
    start: Start, call: Callable[..., CallOutcome], workspace: Path, secrets: list[Path]
) -> None:
    (workspace / "data").mkdir()
    start("sqlite", DATABASE=str(workspace / "data" / "x.db"))
    call("mcp_sqlite_create_table", {"query": "CREATE TABLE notes (text TEXT)"})
    outside = secrets[0].parent / "written.db"
    queries = [
        *(f"VACUUM INTO '{outside}'", f"ATTACH '{outside}' AS other"),
        *(f"ATTACH '{secret}' AS other{n}" for n, secret in enumerate(secrets)),
        *("ATTACH '/etc/passwd' AS users", "SELECT load_extension('/tmp/x')"),
        f"SELECT readfile('{secrets[0]}')",
    ]
    for query in queries:
        assert CANARY not in call("mcp_sqlite_write_query", {"query": query}).text, query
        assert CANARY not in call("mcp_sqlite_read_query", {"query": query}).text, query
    assert not outside.exists()
    assert (workspace / "data" / "x.db").exists()


@pytest.fixture
def listener() -> Iterator[tuple[int, list[bytes]]]:
    """Run a server on the loopback; yield its port and the received data."""
    received: list[bytes] = []

    class Recorder(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            received.append(self.request.recv(4096))
            self.request.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n{CANARY}".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Recorder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], received
        server.shutdown()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_database_of_the_host_cant_be_reached(
    start: Start, call: Callable[..., CallOutcome], listener: tuple[int, list[bytes]], host: str
) -> None:
    port, received = listener
    start("redis", HOST=host, PORT=str(port), PASSWORD="secret-of-the-organization")
    assert f":{port}. Connection refused." in call("mcp_redis_info", {}).text
    assert received == []


@pytest.mark.browser
def test_a_browser_cant_open_files_or_pages_of_the_host(
    start: Start,
    call: Callable[..., CallOutcome],
    listener: tuple[int, list[bytes]],
    secrets: list[Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    port, received = listener
    start("playwright")
    navigate = partial(call, "mcp_playwright_browser_navigate")
    start_page = navigate({"url": "data:text/html,<title>It works</title>"})
    assert "Page Title: It works" in start_page.text
    navigate({"url": "http://10.1.2.3/"})
    assert "a sandboxed server was refused an address" in caplog.messages  # by the egress proxy
    for url in (
        *(f"file://{secret}" for secret in secrets),
        *(f"view-source:file://{secrets[0]}", "file:///etc/passwd", "file:///etc/shadow"),
        *(f"http://127.0.0.1:{port}/", f"http://localhost:{port}/", f"http://[::1]:{port}/"),
        "http://169.254.169.254/latest/meta-data/",
    ):
        page = navigate({"url": url}).text
        assert CANARY not in page, url
        assert "root:" not in page, url
    assert received == []


KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: x
clusters: [{{name: x, cluster: {{server: "https://192.0.2.1"}}}}]
contexts: [{{name: x, context: {{cluster: x, user: x}}}}]
users:
- name: x
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      interactiveMode: Never
      command: /bin/sh
      args: [{script}]
"""
