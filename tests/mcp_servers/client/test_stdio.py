"""stdio with real and hostile children: eras, crashes, deadlines, limits."""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import ConnectionPool
from tests.factories import CLOCK
from tests.mcp_servers.client.endpoints import (
    HOLDER,
    call,
    count_starts,
    failure,
    faulty_stdio,
    stdio,
    text_of,
)

LIMIT_S = 0.2


# --- eras


@pytest.mark.parametrize(
    ("era", "expected", "version"),
    [
        ("both", "modern", "2026-07-28"),
        ("modern", "modern", "2026-07-28"),
        ("handshake", "handshake", "2025-11-25"),
        ("silent", "handshake", "2025-11-25"),
        ("strict", "handshake", "2025-11-25"),
        ("fussy", "handshake", "2025-11-25"),
        ("late", "modern", "2026-07-28"),
        ("old", "handshake", "2025-11-25"),
    ],
)
async def test_the_era_of_an_unusual_server_is_detected(
    connections: ConnectionPool, era: str, expected: str, version: str
):
    handshake = await connections.perform_handshake(faulty_stdio(era), holder=HOLDER)
    assert (handshake.era, handshake.protocol_version) == (expected, version)


async def test_a_server_that_ignores_the_probe_delays_the_start_by_about_a_second(
    connections: ConnectionPool,
):
    started_at = time.monotonic()
    await connections.perform_handshake(faulty_stdio("silent"), holder=HOLDER)
    assert time.monotonic() - started_at < 2.5


async def test_a_server_that_dies_of_the_probe_is_restarted_without_it(
    connections: ConnectionPool,
):
    endpoint = faulty_stdio("strict")
    assert text_of(await call(connections, endpoint, "echo", a=1)) == '{"a": 1}'
    assert count_starts(connections, endpoint) == 2


async def test_a_stored_era_isnt_probed_again(connections: ConnectionPool):
    endpoint = faulty_stdio("strict", era="handshake")
    await call(connections, endpoint, "echo")
    assert count_starts(connections, endpoint) == 1


@pytest.mark.parametrize(
    ("stored_era", "era", "expected"),
    [
        ("modern", "handshake", "handshake"),
        ("modern", "strict", "handshake"),
        ("handshake", "modern", "modern"),
    ],
)
async def test_a_wrong_stored_era_is_detected_again(
    connections: ConnectionPool, stored_era: str, era: str, expected: str
):
    endpoint = faulty_stdio(era, era=stored_era)
    assert (await connections.perform_handshake(endpoint, holder=HOLDER)).era == expected


@pytest.mark.parametrize("era", ["no", "late_no"])
async def test_a_server_that_refuses_every_handshake_is_quoted(
    connections: ConnectionPool, era: str
):
    error = await failure(connections.perform_handshake(faulty_stdio(era), holder=HOLDER))
    assert error.code == "upstream_error"
    assert "not today" in str(error)


async def test_a_server_without_a_common_version_is_reported_with_its_versions(
    connections: ConnectionPool,
):
    error = await failure(connections.perform_handshake(faulty_stdio("foreign"), holder=HOLDER))
    assert error.code == "protocol_error"
    assert "2030-01-01" in str(error)


async def test_a_handshake_with_an_unknown_version_is_refused(connections: ConnectionPool):
    endpoint = faulty_stdio("handshake", env={"VERSION": "1999-01-01"})
    error = await failure(connections.perform_handshake(endpoint, holder=HOLDER))
    assert error.code == "protocol_error"
    assert "1999-01-01" in str(error)


# --- starting


async def test_a_missing_command_is_unreachable(connections: ConnectionPool):
    error = await failure(call(connections, stdio("no-such-command"), "x"))
    assert (error.code, error.sent) == ("server_unreachable", False)
    assert "no-such-command" in str(error)
    assert "installed" in error.remedy


async def test_a_missing_folder_is_unreachable(connections: ConnectionPool):
    error = await failure(call(connections, faulty_stdio(cwd="/no/such/folder"), "x"))
    assert error.code == "server_unreachable"
    assert "/no/such/folder" in str(error)


async def test_a_server_that_exits_at_its_start_is_reported_with_its_stderr(
    connections: ConnectionPool,
):
    endpoint = stdio(sys.executable, "-c", "import sys; sys.exit('the key ☠\\u202e is missing')")
    error = await failure(call(connections, endpoint, "x"))
    assert (error.code, error.sent) == ("server_crashed", False)
    assert "exited with status 1" in str(error)
    assert str(error).count("the key ☠⟨U+202E⟩ is missing") == 1  # although it was started twice


async def test_reported_stderr_doesnt_contain_the_endpoints_secrets(connections: ConnectionPool):
    code = "import os, sys; sys.exit('bad key ' + os.environ['API_KEY'])"
    endpoint = stdio(sys.executable, "-c", code, env={"API_KEY": "hunter2-hunter2"})
    error = await failure(call(connections, endpoint, "x"))
    assert "hunter2" not in str(error)
    assert "bad key" in str(error)


async def test_a_server_without_a_handshake_is_unreachable_after_its_timeout(
    connections: ConnectionPool,
):
    endpoint = stdio("sleep", "60", start_s=0.3)
    began = time.monotonic()
    error = await failure(call(connections, endpoint, "x"))
    assert error.code == "server_unreachable"
    assert "0.3 s" in str(error)
    assert time.monotonic() - began < 2


async def test_a_timeout_before_the_handshake_reports_that_nothing_was_sent(
    connections: ConnectionPool,
):
    error = await failure(call(connections, stdio("sleep", "60"), "x", timeout_s=LIMIT_S))
    assert (error.code, error.sent) == ("server_unreachable", False)


# --- third-party servers


async def test_the_time_server_answers(
    connections: ConnectionPool, pypi_server: Callable[[str], str]
):
    endpoint = stdio(pypi_server("mcp-server-time"))
    assert (await connections.perform_handshake(endpoint, holder=HOLDER)).era == "modern"
    result = await call(connections, endpoint, "get_current_time", timezone="Asia/Tokyo")
    assert "Asia/Tokyo" in text_of(result)
    # The copy that most tests use declares the same tools.
    copy = stdio(sys.executable, str(CLOCK))
    assert await get_declared(connections, endpoint) == await get_declared(connections, copy)


async def get_declared(
    connections: ConnectionPool, endpoint: ServerEndpoint
) -> list[dict[str, Any]]:
    """Return a server's tools, without titles and output schemas."""
    items = (await connections.fetch_declarations(endpoint)).items
    tools = [item.payload for item in items if item.kind == "tool"]
    return [
        {field: tool[field] for field in ("name", "description", "annotations")}
        | {
            "properties": {
                name: parameter["description"] for name, parameter in get_properties(tool).items()
            }
        }
        | {"required": tool["inputSchema"]["required"]}
        for tool in tools
    ]


def get_properties(tool: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = tool["inputSchema"]["properties"]
    return properties


async def test_the_git_server_answers(
    connections: ConnectionPool, pypi_server: Callable[[str], str], tmp_path: Path
):
    git = await asyncio.create_subprocess_exec("git", "init", "-q", str(tmp_path))
    assert await git.wait() == 0
    endpoint = stdio(pypi_server("mcp-server-git"), "--repository", str(tmp_path))
    result = await call(connections, endpoint, "git_status", repo_path=str(tmp_path))
    assert "Repository status" in text_of(result)


@pytest.mark.npm
async def test_the_everything_server_answers(
    connections: ConnectionPool, node_server: Callable[[str], str]
):
    endpoint = stdio(node_server("mcp-server-everything"))
    assert (await connections.perform_handshake(endpoint, holder=HOLDER)).era == "handshake"
    assert text_of(await call(connections, endpoint, "echo", message="hi")) == "Echo: hi"
