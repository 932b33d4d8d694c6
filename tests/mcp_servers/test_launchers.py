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
