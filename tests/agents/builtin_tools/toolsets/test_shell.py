"""The toolset `shell`: what a command in the sandbox can and can't do, and how it ends."""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from agents.builtin_tools.workspaces import get_own_folder
from agents.calls import pipeline
from agents.calls.pipeline import CallOutcome
from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.problems import Forbidden
from bonobot.core.runtime import get_runtime
from tests import factories
from tests.agents.builtin_tools.conftest import configure_agent
from tests.wait import eventually

Call = Callable[..., CallOutcome]
pytestmark = pytest.mark.sandbox


@pytest.fixture
def home(helper: Agent) -> Path:
    """The agent's own folder; `shell` is enabled without network access."""
    configure_agent(helper, builtin_tools=["shell", "filesystem"])
    return get_own_folder(helper.organization_id, helper.pk)


def test_a_command_sees_only_the_workspace(home: Path, call: Call, tmp_path: Path):
    (tmp_path / "secret").write_text("nobody's business")
    outcome = call("run_shell", {"command": "pwd; echo hi > a; cat a; ls nothing; exit 3"})
    assert outcome.text.startswith("/workspace\nhi\n")
    assert "nothing" in outcome.text
    assert outcome.text.endswith("[exit status 3]")
    assert outcome.result["structuredContent"] == {"exit_status": 3}
    assert (home / "a").read_text() == "hi\n"
    assert call("read_file", {"path": "a"}).text == "hi\n"
    script = f"""
cat {tmp_path}/secret; ls {home.parent} {Path(__file__).parent}; cat /etc/passwd /etc/shadow
ln {tmp_path}/secret mine; ln /usr/bin/env mine; mknod dev c 1 3
touch /x /usr/x /dev/x; mount -t tmpfs none /workspace; unshare -Urm true && echo escaped
ls /proc | grep -c '^[0-9]'; env; kill -9 {os.getpid()}
"""
    outcome = call("run_shell", {"command": script})
    for secret in ("nobody's", "root:", "escaped", "BONOBOT", "test_shell"):
        assert secret not in outcome.text
    assert sorted(entry.name for entry in home.iterdir()) == ["a"]
    names = {line.partition("=")[0] for line in outcome.text.splitlines() if "=" in line}
    assert {"PATH", "HOME", "LANG", "TERM"} <= names
    call("run_shell", {"command": f"ln -s {tmp_path}/secret out; mkfifo pipe"})
    assert call("read_file", {"path": "out"}).code == "symbolic_link"
    assert call("read_file", {"path": "pipe"}).code == "not_a_file"


def test_there_is_no_network_unless_enabled(home: Path, helper: Agent, call: Call):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        arguments = {"command": f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached"}
        arguments["command"] = f"bash -c '{arguments['command']}'"
        assert "reached" not in call("run_shell", arguments).text
        configure_agent(helper, builtin_tools={"shell": {"network": True}})
        assert "reached" in call("run_shell", arguments).text


def test_a_command_is_stopped_at_its_limits_with_all_child_processes(
    home: Path, helper: Agent, call: Call
):
    configure_agent(helper, builtin_tools={"shell": {"time_s": 1}}, workspace_mib=1)
    start = time.monotonic()
    slow = call("run_shell", {"command": "echo begun; (setsid sleep 987654 &) ; sleep 987654"})
    assert (slow.outcome, slow.code) == ("error", "shell_timeout")
    assert "begun" in slow.text
    assert time.monotonic() - start < 10
    eventually(lambda: not _is_sleep_running("987654"))
    verbose = call("run_shell", {"command": "exec 2>&1; yes"})
    assert verbose.code in ("shell_output", "shell_timeout")
    full = call("run_shell", {"command": "for i in 1 2 3; do head -c 900000 /dev/zero > $i; done"})
    assert full.code == "quota_exceeded" or call("run_shell", {"command": "true"}).code == (
        "quota_exceeded"
    )


def test_background_work_ends_with_its_command(home: Path, call: Call):
    start = time.monotonic()
    outcome = call("run_shell", {"command": "(setsid sleep 876543 &); echo done"})
    assert outcome.text == "done\n\n[exit status 0]"
    assert time.monotonic() - start < 5
    eventually(lambda: not _is_sleep_running("876543"))


def test_a_command_ends_when_its_caller_is_canceled(home: Path, helper: Agent, acme: Organization):
    administrator = factories.build_administrator(acme)

    async def cancel_call() -> None:
        request = pipeline.CallRequest(
            principal=administrator,
            agent_id=helper.pk,
            via="rest",
            holder="server:tests:leaving",
            tool="run_shell",
            arguments={"command": "sleep 765432"},
        )
        task = asyncio.create_task(pipeline.make_call(request))
        while not await asyncio.to_thread(_is_sleep_running, "765432"):
            assert not task.done()
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    get_runtime().call(cancel_call)
    eventually(lambda: not _is_sleep_running("765432"))


def test_without_a_sandbox_nothing_runs_and_the_reason_is_reported(home: Path, call: Call):
    def find_nothing(tool: str, **_: Any) -> None:
        return None

    with (
        patch("agents.builtin_tools.command_sandbox._seen", set()),
        patch("mcp_servers.client.sandbox._working", set()),
        patch("shutil.which", find_nothing),
    ):
        outcome = call("run_shell", {"command": "touch ran"})
    assert (outcome.outcome, outcome.code) == ("error", "sandbox_unavailable")
    assert "Install the package" in outcome.remedy
    assert not (home / "ran").exists()


def test_only_a_platform_administrator_can_enable_a_shell_or_a_folder(
    acme: Organization, helper: Agent, tmp_path: Path
):
    from agents.services import AgentSpec, update_agent

    owner = factories.create_member(acme, Role.OWNER)
    for fields, field in (
        ({"builtin_tools": ["shell"]}, "builtin_tools.shell"),
        ({"builtin_tools": {"fetch": {"allow_private": True}}}, "builtin_tools.fetch"),
        ({"workspace_folder": str(tmp_path)}, "workspace_folder"),
    ):
        with pytest.raises(Forbidden) as raised:
            update_agent(owner, helper, AgentSpec(name="Helper", **fields))
        assert raised.value.code == "platform_admin_only"
        assert raised.value.field.startswith(field)
    configure_agent(helper, builtin_tools={"shell": {"time_s": 30, "network": True}})
    # People who can change the agent can keep or reduce what was enabled, but not extend it.
    update_agent(owner, helper, AgentSpec(name="Other", builtin_tools={"shell": {"time_s": 20}}))
    with pytest.raises(Forbidden):
        update_agent(owner, helper, AgentSpec(name="x", builtin_tools={"shell": {"time_s": 90}}))
    with pytest.raises(Forbidden):
        update_agent(owner, helper, AgentSpec(name="x", builtin_tools={"shell": {"network": True}}))


def _is_sleep_running(seconds: str) -> bool:
    command_lines = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command_lines.append((folder / "cmdline").read_bytes())
            except OSError:
                continue
    return any(seconds.encode() in line and b"sleep" in line for line in command_lines)
