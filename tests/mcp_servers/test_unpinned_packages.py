"""A package or image without a pinned version gets a warning."""

import pytest

from mcp_servers.launchers import check_launcher

ALLOWED = {"npx", "uvx", "node", "python", "docker"}


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("npx", ["-y", "@modelcontextprotocol/server-memory"]),
        ("npx", ["-y", "@modelcontextprotocol/server-memory@latest"]),
        ("npx", ["some-server@^1.2.0"]),
        ("npx", ["--package=some-server", "some-server"]),
        ("npx", ["-p", "some-server@next", "run-it"]),
        ("npx", ["-y", "--", "some-server"]),
        ("npx", ["github:someone/server"]),
        ("uvx", ["mcp-server-time"]),
        ("uvx", ["mcp-server-time@latest"]),
        ("uvx", ["--from", "mcp-server-time>=1", "mcp-server-time"]),
        ("uvx", ["--python", "3.12", "mcp-server-time"]),
        ("uvx", ["--from", "git+https://github.com/a/b@main", "b"]),
        ("docker", ["run", "-i", "--rm", "mcp/time"]),
        ("docker", ["run", "-e", "A=b:c", "mcp/time:latest"]),
        ("docker", ["run", "registry.example:5000/mcp/time"]),
    ],
)
def test_a_package_without_a_version_gets_a_warning(command: str, args: list[str]) -> None:
    (warning,) = check_launcher(command, args, allowed_launchers=ALLOWED)
    assert warning.code == "unpinned_version"
    assert warning.field == "endpoint_config.args"


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("npx", ["-y", "@modelcontextprotocol/server-memory@2026.8.31"]),
        ("npx", ["--package", "some-server@1.2.3-beta.4", "run-it"]),
        ("npx", ["./local-server"]),
        ("npx", []),
        ("uvx", ["mcp-server-time@2026.10.19", "--local-timezone", "UTC"]),
        ("uvx", ["mcp-server-sqlite==2025.4.25"]),
        ("uvx", ["--from", "server[extra]==1.0", "server"]),
        ("uvx", ["--from", "git+https://github.com/a/b@" + "0a" * 20, "b"]),
        ("docker", ["run", "-i", "mcp/time:1.2"]),
        ("docker", ["run", "-i", "mcp/time@sha256:" + "0" * 64]),
        ("docker", ["version"]),
        ("python", ["-m", "mcp_server_time", "-c"]),
        ("node", ["server.js", "-e"]),
    ],
)
def test_a_pinned_or_local_package_gets_no_warning(command: str, args: list[str]) -> None:
    assert check_launcher(command, args, allowed_launchers=ALLOWED) == ()
