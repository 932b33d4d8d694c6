"""The toolset `git`: its output and commits; a hostile repository can't run programs."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.builtin_tools.toolsets.git import filter_config
from agents.builtin_tools.workspaces import get_own_folder
from agents.calls.pipeline import CallOutcome
from agents.models import Agent
from mcp_servers.schemas import InvalidArguments
from tests.agents.builtin_tools.conftest import configure_agent

Call = Callable[..., CallOutcome]
pytestmark = pytest.mark.sandbox
PAYLOAD = "touch /workspace/RAN; touch /workspace/repo/RAN; cat"
HOSTILE = f"""
[core]
	repositoryformatversion = 0
	fsmonitor = "{PAYLOAD}"
	hooksPath = hooks
	sshCommand = {PAYLOAD}
	pager = {PAYLOAD}
	editor = {PAYLOAD}
	askPass = {PAYLOAD}
	gitProxy = {PAYLOAD}
	attributesFile = /workspace/repo/attributes
	alternateRefsCommand = {PAYLOAD}
	worktree = /etc
[diff]
	external = {PAYLOAD}
[diff "evil"]
	textconv = {PAYLOAD}
	command = {PAYLOAD}
[filter "evil"]
	clean = {PAYLOAD}
	smudge = {PAYLOAD}
	process = {PAYLOAD}
	required = true
[merge "evil"]
	driver = {PAYLOAD}
[hook "evil"]
	command = {PAYLOAD}
	event = pre-commit
[pager]
	log = {PAYLOAD}
	diff = {PAYLOAD}
	show = {PAYLOAD}
	status = {PAYLOAD}
[interactive]
	diffFilter = {PAYLOAD}
[commit]
	gpgSign = true
	template = /etc/passwd
[gpg]
	program = {PAYLOAD}
[log]
	showSignature = true
[credential]
	helper = !{PAYLOAD}
[include]
	path = /workspace/repo/more
[alias]
	status = !{PAYLOAD}
[user]
	name = Somebody
[remote "origin"]
	url = ext::sh -c {PAYLOAD}
	uploadpack = {PAYLOAD}
	promisor = true
	fetch = +refs/heads/*:refs/remotes/origin/*
[extensions]
	partialClone = origin
	worktreeConfig = true
"""


@pytest.fixture
def home(helper: Agent) -> Path:
    """The agent's own folder; `git` and `filesystem` are enabled."""
    configure_agent(helper, builtin_tools=["git", "filesystem"])
    return get_own_folder(helper.organization_id, helper.pk)


def test_a_repository_is_created_changed_shown_and_committed(home: Path, call: Call):
    assert "on the branch main" in call("git_init", {"repository": "repo"}).text
    call("write_file", {"path": "repo/a.txt", "text": "one\n"})
    repository = {"repository": "repo"}
    assert call("git_status", repository).text == "## No commits yet on main\n?? a.txt\n"
    assert call("git_add", repository | {"paths": ["a.txt"]}).text.endswith("A  a.txt\n")
    assert "First" in call("git_commit", repository | {"message": "First\n\n# no comment"}).text
    call("write_file", {"path": "repo/a.txt", "text": "two\n"})
    assert "-one\n+two" in call("git_diff", repository).text
    call("git_add", repository)
    assert call("git_diff", repository).text == "There is no difference."
    assert "+two" in call("git_diff", repository | {"staged": True}).text
    call("git_commit", repository | {"message": "Second"})
    log = call("git_log", repository | {"most": 1}).text
    assert "Helper <helper@bonobot.invalid>" in log
    assert "Second" in log
    assert "First" not in log
    assert "# no comment" in call("git_show", repository | {"revision": "HEAD~1"}).text
    assert call("git_show", repository | {"revision": "HEAD~1:a.txt"}).text == "one\n"
    assert "+two" in call("git_diff", repository | {"from": "HEAD~1", "to": "HEAD"}).text
    empty_commit = call("git_commit", repository | {"message": "Nothing"})
    assert (empty_commit.outcome, empty_commit.code) == ("error", "git_failed")
    assert "nothing to commit" in empty_commit.text


def test_a_hostile_repository_runs_no_program(home: Path, helper: Agent, call: Call):
    repo = home / "repo"
    repo.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", "-b", "main", str(repo)], check=True)
    (repo / ".git" / "config").write_text(HOSTILE)
    (repo / ".git" / "config.worktree").write_text(HOSTILE)
    (repo / "more").write_text(HOSTILE)
    (repo / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    (repo / "attributes").write_text("* filter=evil diff=evil\n")
    for folder in ("hooks", ".git/hooks"):
        (repo / folder).mkdir(exist_ok=True)
        for hook in ("pre-commit", "post-commit", "commit-msg", "post-index-change", "fsmonitor"):
            (repo / folder / hook).write_text(f"#!/bin/sh\n{PAYLOAD}\n")
            (repo / folder / hook).chmod(0o755)
    (repo / "a.txt").write_text("one\n")
    repository = {"repository": "repo"}
    outcomes = [
        call(tool, repository | arguments)
        for tool, arguments in (
            ("git_status", {}),
            ("git_add", {}),
            ("git_diff", {"staged": True}),
            ("git_commit", {"message": "First"}),
            ("git_log", {}),
            ("git_show", {"revision": "HEAD"}),
            ("git_status", {}),
            ("git_diff", {}),
        )
    ]
    assert [outcome.outcome for outcome in outcomes] == ["ok"] * len(outcomes), [
        outcome.text for outcome in outcomes
    ]
    assert "+one" in outcomes[5].text
    assert not list(home.rglob("RAN"))
    assert (repo / ".git" / "config").read_text() == HOSTILE
    # Git itself does run the monitor of such a repository, so the test covers a real attack.
    configure_agent(helper, builtin_tools=["shell"])
    monitored = "[core]\n\tfsmonitor = touch /workspace/RAN\n"
    (repo / ".git" / "config").write_text(monitored)
    status = call("run_shell", {"command": "git -C repo status"})
    assert (home / "RAN").exists(), status.text


def test_a_folder_that_only_looks_like_a_repository_is_refused(home: Path, call: Call):
    bare = home / "bare"
    for folder in ("objects", "refs"):
        (bare / folder).mkdir(parents=True)
    (bare / "HEAD").write_text("ref: refs/heads/main\n")
    (bare / "config").write_text(HOSTILE)
    (home / "linked").mkdir()
    (home / "linked" / ".git").write_text("gitdir: /workspace/bare\n")
    (home / "link").mkdir()
    (home / "link" / ".git").symlink_to(bare)
    (home / "shared" / ".git").mkdir(parents=True)
    (home / "shared" / ".git" / "config").write_text("")
    (home / "shared" / ".git" / "commondir").write_text("/workspace/bare\n")
    for path, code in (
        ("bare", "no_repository"),
        ("nowhere", "no_repository"),
        ("linked", "not_a_repository"),
        ("link", "not_a_repository"),
        ("shared", "not_a_repository"),
        ("../x", "outside_workspace"),
    ):
        assert call("git_status", {"repository": path}).code == code, path
    assert call("git_init", {"repository": "shared"}).code == "already_exists"
    for revision in ("--output=/workspace/x", "-p", "HEAD --all", "a\nb", ""):
        with pytest.raises(InvalidArguments):
            call("git_show", {"repository": "shared", "revision": revision})
    assert not list(home.rglob("RAN"))


def test_only_harmless_git_settings_are_kept():
    config = filter_config(HOSTILE.encode())
    assert "evil" not in config
    assert "touch" not in config
    assert "/etc" not in config
    assert '[user]\n\tname = "Somebody"' in config
    assert '[remote "origin"]\n\tfetch = "+refs/heads/*:refs/remotes/origin/*"' in config
    injected = b'[user]\n\tname = a"b\n\tname = "x\\n[core]"\n[branch "m\\"x"]\n\tmerge = y\n'
    assert filter_config(injected) == filter_config(b"")
