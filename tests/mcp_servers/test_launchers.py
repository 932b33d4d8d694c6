"""Stdio servers are started by an allowlisted launcher, never by a shell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.launchers import SHELLS, LauncherNotAllowed, check_launcher

ALLOWED = {"npx", "uvx", "node", "python", "python3", "docker", "/opt/mcp/bin/server", "bash"}


@pytest.mark.parametrize("command", ["npx", "python3", "docker", "/opt/mcp/bin/server"])
def test_a_listed_launcher_can_start(command: str) -> None:
    assert check_launcher(command, [], allowed_launchers=ALLOWED) == ()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("", "empty"),
        ("bash", "shells"),
        ("/bin/sh", "shells"),
        ("/usr/bin/../bin/zsh", "shells"),
        ("BASH", "shells"),
        ("cmd.exe", "shells"),
        (r"C:\Windows\System32\cmd.exe", "shells"),
        ("powershell", "shells"),
        ("env", "isn't on the allowlist"),
        ("curl", "isn't on the allowlist"),
        ("NPX", "isn't on the allowlist"),
        ("npx.cmd", "Windows"),
        (r"C:\node\npx", "Windows"),
        ("./npx", "absolute"),
        ("bin/npx", "absolute"),
        ("../npx", "absolute"),
        ("/opt/mcp/bin/../bin/server", "must be normalized"),
        ("/opt/mcp//bin/server", "must be normalized"),
        ("/opt/mcp/bin/server/", "must be normalized"),
        ("/opt/mcp/bin/./server", "must be normalized"),
        ("/opt/mcp/bin/other", "isn't on the allowlist"),
        ("/usr/bin/npx", "isn't on the allowlist"),
        ("npx -y some-server", "must be separate"),
        ("npx\n", "must be separate"),
        ("npx;id", "name of a program"),
        ("$(npx)", "name of a program"),
        ("np\u0445", "name of a program"),
        ("npx\u200b", "name of a program"),
        ("-y", "name of a program"),
        ("${LAUNCHER}", "name of a program"),
    ],
)
def test_every_other_command_is_refused_with_a_remedy(command: str, reason: str) -> None:
    with pytest.raises(LauncherNotAllowed) as caught:
        check_launcher(command, [], allowed_launchers=ALLOWED)
    assert caught.value.code == "launcher_not_allowed"
    assert caught.value.field == "endpoint_config.command"
    assert reason in caught.value.detail
    assert "`npx`" in caught.value.remedy
    assert "`bash`" not in caught.value.remedy


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_a_shell_is_refused_even_if_listed(shell: str) -> None:
    with pytest.raises(LauncherNotAllowed):
        check_launcher(shell, ["-c", "id"], allowed_launchers={shell, f"/bin/{shell}"})
    with pytest.raises(LauncherNotAllowed):
        check_launcher(f"/bin/{shell}", [], allowed_launchers={shell, f"/bin/{shell}"})


@given(st.text(max_size=40), st.sets(st.sampled_from(["npx", "uvx", "/opt/x"])))
def test_only_listed_launchers_pass(command: str, allowed: set[str]) -> None:
    try:
        check_launcher(command, [], allowed_launchers=allowed)
    except LauncherNotAllowed:
        assert command not in allowed
    else:
        assert command in allowed


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


@pytest.mark.parametrize(
    ("command", "args"),
    [("python", ["-c", "print(1)"]), ("python3", ["-u", "-c", "x"]), ("node", ["-e", "x"])],
)
def test_program_code_in_the_arguments_gets_a_warning(command: str, args: list[str]) -> None:
    (warning,) = check_launcher(command, args, allowed_launchers=ALLOWED)
    assert warning.code == "inline_code"
    assert warning.as_dict().keys() == {"code", "detail", "field"}


def test_the_remedy_lists_programs_and_no_paths_of_this_machine() -> None:
    with pytest.raises(LauncherNotAllowed) as caught:
        check_launcher("nowhere", allowed_launchers={"npx", "uvx", "/opt/bonobot/bin/python"})
    assert "(`npx`, `uvx`)" in str(caught.value.remedy)
    assert "/opt" not in str(caught.value.remedy)
