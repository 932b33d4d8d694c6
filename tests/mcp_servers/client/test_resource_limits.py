"""Resource limits of child processes."""

import resource
import sys

import pytest

from mcp_servers.client import resource_limits
from mcp_servers.client.pool import ConnectionPool
from mcp_servers.client.resource_limits import ProcessLimits
from tests.mcp_servers.client.endpoints import SERVERS, call, failure, http, stdio, text_of

MODERN = str(SERVERS / "sdk_server.py")
SHOW = """
import json, resource, sys
kinds = (resource.RLIMIT_DATA, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_CPU)
sys.exit(f"limits {[resource.getrlimit(kind)[0] for kind in kinds]}")
"""

pytestmark = pytest.mark.skipif(resource_limits._find_prlimit() is None, reason="no `prlimit` here")


async def test_a_child_runs_under_its_limits(connections: ConnectionPool):
    limits = ProcessLimits(memory_mib=512, processes=300, open_files=200, cpu_s=20)
    endpoint = stdio(sys.executable, "-c", SHOW, limits=limits)
    error = await failure(connections.perform_handshake(endpoint, holder="session:a"))
    assert f"limits {[512 * 2**20, 300, 200, 20]}" in str(error)


async def test_a_server_works_within_limits(connections: ConnectionPool):
    bounds = ProcessLimits(memory_mib=1024, processes=4096, open_files=256, cpu_s=60)
    endpoint = stdio(sys.executable, MODERN, limits=bounds)
    assert text_of(await call(connections, endpoint, "add", a=1, b=2)) == "3"


async def test_a_server_that_uses_too_much_memory_fails_without_affecting_others(
    connections: ConnectionPool,
):
    greedy = stdio(sys.executable, "-c", "bytearray(2**30)", limits=ProcessLimits(memory_mib=128))
    error = await failure(connections.perform_handshake(greedy, holder="session:a"))
    assert (error.code, "MemoryError" in str(error)) == ("server_crashed", True)


async def test_a_server_that_computes_endlessly_is_ended(connections: ConnectionPool):
    busy = stdio(
        sys.executable, "-c", "while True: pass", limits=ProcessLimits(cpu_s=1), start_s=20
    )
    error = await failure(connections.perform_handshake(busy, holder="session:a"))
    assert error.code == "server_crashed"


def test_without_limits_the_command_is_unchanged():
    assert ProcessLimits().build_command_prefix() == ()


def test_lower_existing_limits_arent_raised(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 64))
    assert ProcessLimits(open_files=4096).build_command_prefix()[1:] == ("--nofile=64", "--")
    assert ProcessLimits(open_files=32).build_command_prefix()[1:] == ("--nofile=32", "--")


def test_changed_limits_are_another_configuration():
    url, first = "https://mcp.example.com", http("https://mcp.example.com")
    other = http(url, server_id=first.server_id, limits=ProcessLimits(cpu_s=1))
    assert first.fingerprint != other.fingerprint
