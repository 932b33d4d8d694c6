"""The kit git: what it shows and commits, and that a hostile repository runs nothing."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.builtin_tools.toolsets.git import filter_config
from agents.builtin_tools.workspaces import get_own_folder
from agents.calls.pipeline import CallOutcome
from agents.models import Agent
from mcp_servers.schemas import InvalidArguments
from tests.agents.builtin_tools.conftest import give

Call = Callable[..., CallOutcome]
pytestmark = pytest.mark.sandbox
RAN = "touch /workspace/RAN; touch /workspace/repo/RAN; cat"
HOSTILE = f"""
[core]
	repositoryformatversion = 0
	fsmonitor = "{RAN}"
	hooksPath = hooks
	sshCommand = {RAN}
	pager = {RAN}
	editor = {RAN}
	askPass = {RAN}
	gitProxy = {RAN}
	attributesFile = /workspace/repo/attributes
	alternateRefsCommand = {RAN}
	worktree = /etc
[diff]
	external = {RAN}
[diff "evil"]
	textconv = {RAN}
	command = {RAN}
[filter "evil"]
	clean = {RAN}
	smudge = {RAN}
	process = {RAN}
	required = true
[merge "evil"]
	driver = {RAN}
[hook "evil"]
	command = {RAN}
	event = pre-commit
[pager]
	log = {RAN}
	diff = {RAN}
	show = {RAN}
	status = {RAN}
[interactive]
	diffFilter = {RAN}
[commit]
	gpgSign = true
	template = /etc/passwd
[gpg]
	program = {RAN}
[log]
	showSignature = true
[credential]
	helper = !{RAN}
[include]
	path = /workspace/repo/more
[alias]
	status = !{RAN}
[user]
	name = Somebody
[remote "origin"]
	url = ext::sh -c {RAN}
	uploadpack = {RAN}
	promisor = true
	fetch = +refs/heads/*:refs/remotes/origin/*
[extensions]
	partialClone = origin
	worktreeConfig = true
"""


@pytest.fixture
def home(helper: Agent) -> Path:
    """The agent's own folder; it has git and files."""
    give(helper, builtin_tools=["git", "filesystem"])
    return get_own_folder(helper.organization_id, helper.pk)


def test_a_repository_is_created_changed_shown_and_committed(home: Path, call: Call):
    assert "on the branch main" in call("git_init", {"repository": "repo"}).text
    call("write_file", {"path": "repo/a.txt", "text": "one\n"})
    at = {"repository": "repo"}
    assert call("git_status", at).text == "## No commits yet on main\n?? a.txt\n"
    assert call("git_add", at | {"paths": ["a.txt"]}).text.endswith("A  a.txt\n")
    assert "First" in call("git_commit", at | {"message": "First\n\n# no comment"}).text
    call("write_file", {"path": "repo/a.txt", "text": "two\n"})
    assert "-one\n+two" in call("git_diff", at).text
    call("git_add", at)
    assert call("git_diff", at).text == "There is no difference."
    assert "+two" in call("git_diff", at | {"staged": True}).text
    call("git_commit", at | {"message": "Second"})
    log = call("git_log", at | {"most": 1}).text
    assert "Helper <helper@bonobot.invalid>" in log
    assert "Second" in log
    assert "First" not in log
    assert "# no comment" in call("git_show", at | {"revision": "HEAD~1"}).text
    assert call("git_show", at | {"revision": "HEAD~1:a.txt"}).text == "one\n"
    assert "+two" in call("git_diff", at | {"from": "HEAD~1", "to": "HEAD"}).text
    nothing = call("git_commit", at | {"message": "Nothing"})
    assert (nothing.outcome, nothing.code) == ("error", "git_failed")
    assert "nothing to commit" in nothing.text


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
            (repo / folder / hook).write_text(f"#!/bin/sh\n{RAN}\n")
            (repo / folder / hook).chmod(0o755)
    (repo / "a.txt").write_text("one\n")
    at = {"repository": "repo"}
    made = [
        call(tool, at | more)
        for tool, more in (
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
    assert [one.outcome for one in made] == ["ok"] * len(made), [one.text for one in made]
    assert "+one" in made[5].text
    assert not list(home.rglob("RAN"))
    assert (repo / ".git" / "config").read_text() == HOSTILE
    # Where the repository is believed it runs things: what is tested here is worth testing.
    give(helper, builtin_tools=["shell"])
    monitored = "[core]\n\tfsmonitor = touch /workspace/RAN\n"
    (repo / ".git" / "config").write_text(monitored)
    told = call("run_shell", {"command": "git -C repo status"})
    assert (home / "RAN").exists(), told.text


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
    assert call("git_init", {"repository": "shared"}).code == "already_there"
    for revision in ("--output=/workspace/x", "-p", "HEAD --all", "a\nb", ""):
        with pytest.raises(InvalidArguments):
            call("git_show", {"repository": "shared", "revision": revision})
    assert not list(home.rglob("RAN"))


def test_only_harmless_git_settings_are_kept():
    taken = filter_config(HOSTILE.encode())
    assert "evil" not in taken
    assert "touch" not in taken
    assert "/etc" not in taken
    assert '[user]\n\tname = "Somebody"' in taken
    assert '[remote "origin"]\n\tfetch = "+refs/heads/*:refs/remotes/origin/*"' in taken
    injected = b'[user]\n\tname = a"b\n\tname = "x\\n[core]"\n[branch "m\\"x"]\n\tmerge = y\n'
    assert filter_config(injected) == filter_config(b"")
