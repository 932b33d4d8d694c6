"""The toolsets `filesystem`, `edit`, and `search`, called through the pipeline."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from agents.builtin_tools.workspaces import clear_workspace, describe_workspace, get_own_folder
from agents.calls.pipeline import CallOutcome, CallRefused
from agents.models import Agent
from agents.services import delete_agent
from bonobot.accounts import deletions
from bonobot.accounts.models import Deletion, Organization
from bonobot.ledger.models import AuditRow
from bonobot.ledger.policy_generations import load_policy_generation
from tests import factories
from tests.agents.builtin_tools.conftest import configure_agent

Call = Callable[..., CallOutcome]
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def home(helper: Agent) -> Path:
    """The agent's own folder; the toolsets for files are enabled."""
    configure_agent(helper, builtin_tools=["filesystem", "edit", "search"])
    return get_own_folder(helper.organization_id, helper.pk)


def test_file_tools_are_missing_until_enabled(helper: Agent, call: Call):
    with pytest.raises(CallRefused) as raised:
        call("read_file", {"path": "x"})
    assert (raised.value.code, raised.value.rule) == ("builtin_disabled", "builtin:filesystem")
    configure_agent(helper, builtin_tools={"filesystem": {"read_only": True}})
    assert call("list_files").text == "No results."
    with pytest.raises(CallRefused) as raised:
        call("write_file", {"path": "x", "text": "y"})
    assert raised.value.code == "builtin_disabled"


def test_files_are_written_listed_read_edited_found_and_deleted(home: Path, call: Call):
    written = call("write_file", {"path": "notes/today.md", "text": "buy milk\nring Ann\n"})
    assert written.text == "Created notes/today.md, 18 bytes."
    assert home.stat().st_mode & 0o777 == 0o700
    assert call("list_files").text == "notes/"
    assert call("list_files", {"glob": "*.md"}).text == "notes/today.md  18 bytes"
    assert call("read_file", {"path": "/workspace/notes/today.md"}).text == "buy milk\nring Ann\n"
    assert call("read_file", {"path": "notes/today.md", "first_line": 2}).text == (
        "ring Ann\n\n[lines 2 to 2 of 2]"
    )
    edits = [{"old": "milk", "new": "bread"}, {"old": "bread\n", "new": "bread and salt\n"}]
    changed = call("edit_file", {"path": "notes/today.md", "edits": edits})
    assert changed.text.startswith("Changed notes/today.md: 2 edits.\n@@")
    assert "+buy bread and salt" in changed.text
    matches = call("search_files", {"text": "B.Y", "regex": True, "ignore_case": True})
    assert matches.text == "notes/today.md:1:buy bread and salt"
    assert call("search_files", {"name": "*.md"}).text == "notes/today.md"
    assert call("move_file", {"path": "notes", "to": "old"}).text == "Moved notes to old."
    assert call("file_info", {"path": "."}).text.splitlines()[-1] == (
        "usage: 28 of 268,435,456 bytes, 2 of 10,000 files and folders"
    )
    assert call("make_folder", {"path": "a/b"}).text == "Created a/b."
    failed = call("delete_file", {"path": "old"})
    assert (failed.outcome, failed.code) == ("error", "not_empty")
    call("delete_file", {"path": "old", "with_contents": True})
    assert sorted(entry.name for entry in home.iterdir()) == ["a"]


def test_edits_are_applied_all_or_none(home: Path, call: Call):
    home.mkdir(parents=True)
    file = home / "code.py"
    file.write_bytes(b"\xef\xbb\xbfa = 1\r\nb = 1\r\n")
    for edits, code, message in (
        ([{"old": "a = 1", "new": "a = 2"}, {"old": "c", "new": "d"}], "not_found", "Edit 2"),
        ([{"old": " = 1", "new": " = 2"}], "ambiguous", "2 times, on lines 1, 2"),
        ([{"old": "a = 1\nb", "new": "x"}], "not_found", "CR LF"),
        ([{"old": "a=1", "new": "x"}], "not_found", "not in the file"),
        ([{"old": "a", "new": "a"}], "same_text", "identical"),
    ):
        failed = call("edit_file", {"path": "code.py", "edits": edits})
        assert (failed.outcome, failed.code) == ("error", code)
        assert message in failed.text
        assert file.read_bytes() == b"\xef\xbb\xbfa = 1\r\nb = 1\r\n"
    assert (
        "only in whitespace"
        in call("edit_file", {"path": "code.py", "edits": [{"old": "a=1", "new": "x"}]}).remedy
    )
    call("edit_file", {"path": "code.py", "edits": [{"old": "= 1", "new": "= 2", "every": True}]})
    assert file.read_bytes() == b"\xef\xbb\xbfa = 2\r\nb = 2\r\n"


def test_no_path_leaves_the_workspace_and_git_files_are_protected(
    home: Path, call: Call, tmp_path: Path
):
    (tmp_path / "secret").write_text("nobody's business")
    home.mkdir(parents=True)
    (home / "way").symlink_to(tmp_path)
    (home / "names").hardlink_to(tmp_path / "secret")
    (home / "bin").write_bytes(b"\0\1")
    for tool, arguments, code in (
        ("read_file", {"path": "../x"}, "outside_workspace"),
        ("read_file", {"path": "/etc/passwd"}, "outside_workspace"),
        ("read_file", {"path": "/workspace/../etc/passwd"}, "outside_workspace"),
        ("read_file", {"path": "way/secret"}, "symbolic_link"),
        ("read_file", {"path": "names"}, "hard_link"),
        ("read_file", {"path": "bin"}, "not_text"),
        ("list_files", {"path": "way"}, "symbolic_link"),
        ("search_files", {"path": "way", "text": "x"}, "symbolic_link"),
        ("search_files", {"text": "(?=x)", "regex": True}, "bad_pattern"),
        ("search_files", {}, "invalid"),
        ("write_file", {"path": "way/new", "text": "x"}, "symbolic_link"),
        ("write_file", {"path": ".git/hooks/pre-commit", "text": "x"}, "repository_inside"),
        ("move_file", {"path": "bin", "to": "sub/.GIT/config"}, "repository_inside"),
        ("move_file", {"path": "names", "to": "mine"}, "hard_link"),
        ("move_file", {"path": "bin", "to": "names"}, "already_exists"),
        ("delete_file", {"path": "../x"}, "outside_workspace"),
        ("make_folder", {"path": "way/x"}, "symbolic_link"),
        ("edit_file", {"path": "names", "edits": [{"old": "a", "new": "b"}]}, "hard_link"),
        ("write_file", {"path": "bin", "text": "x", "new": True}, "already_exists"),
    ):
        failed = call(tool, arguments)
        assert (failed.outcome, failed.code) == ("error", code), (tool, arguments)
        assert failed.remedy
    assert call("search_files", {"text": "business"}).text == (
        "Nothing was found.\n[2 files were skipped: not text, too large, or not readable]"
    )
    assert [entry.name for entry in tmp_path.iterdir() if entry.name == "secret"] == ["secret"]
    assert (tmp_path / "secret").read_text() == "nobody's business"


def test_the_quota_limits_bytes_and_files(helper: Agent, home: Path, call: Call):
    configure_agent(helper, workspace_mib=1, workspace_files=3)
    home.mkdir(parents=True)
    (home / "a").write_bytes(bytes(1 << 20))
    denied = call("write_file", {"path": "b", "text": "x"})
    assert (denied.outcome, denied.code) == ("error", "quota_exceeded")
    assert call("write_file", {"path": "a", "text": "x" * 100}).outcome == "ok"
    assert call("write_file", {"path": "c/d/e", "text": "x"}).code == "quota_exceeded"
    assert call("make_folder", {"path": "c/d"}).outcome == "ok"
    assert call("write_file", {"path": "b", "text": "x"}).code == "quota_exceeded"
    assert sorted(entry.name for entry in home.iterdir()) == ["a", "c"]
    workspace = describe_workspace(helper)
    assert (workspace["bytes"], workspace["files"], workspace["attached"]) == (100, 3, False)


def test_an_image_is_returned_as_image_content(home: Path, call: Call):
    home.mkdir(parents=True)
    (home / "dot.png").write_bytes(PIXEL)
    parts = call("read_file", {"path": "dot.png"}).result["content"]
    assert parts[1]["mimeType"] == "image/png"
    assert base64.b64decode(parts[1]["data"]) == PIXEL


def test_files_keep_the_flow_labels_of_the_session_that_wrote_them(
    acme: Organization, helper: Agent, home: Path, call: Call, tmp_path: Path
):
    def call_and_get_labels(tool: str, session: Any = None) -> list[str]:
        call(tool, {"path": "a"} | ({"text": "x"} if tool == "write_file" else {}), **session or {})
        row = AuditRow.objects.filter(tool_name=tool).latest("seq")
        details = json.loads(row.opened)["details"]
        return sorted(set(details.get("labels", [])) - {"repeatable"})

    administrator = factories.build_administrator(acme)
    folder = tmp_path / "attached"
    folder.mkdir()
    session, _ = factories.create_waiting_session(helper)
    assert call_and_get_labels("write_file") == []
    assert call_and_get_labels("read_file") == []
    configure_agent(helper, workspace_folder=str(folder))
    (folder / "a").write_text("private")
    assert call_and_get_labels("read_file", {"session_id": session.pk}) == ["private_data"]
    configure_agent(helper, workspace_folder="")
    before = load_policy_generation(acme.pk)
    assert call_and_get_labels("write_file", {"session_id": session.pk}) == []
    assert load_policy_generation(acme.pk) == before + 1
    assert call_and_get_labels("read_file") == ["private_data"]
    assert describe_workspace(helper.__class__.objects.get(pk=helper.pk))["labels"] == [
        "private_data"
    ]
    clear_workspace(administrator, helper)
    assert list(home.iterdir()) == []
    assert call("list_files").text == "No results."
    changes = AuditRow.objects.filter(event_type="change", resource_id=str(helper.pk))
    assert {"workspace_labeled", "workspace_cleared"} <= set(
        changes.values_list("action", flat=True)
    )


def test_a_workspace_is_deleted_when_its_agent_can_no_longer_be_restored(
    acme: Organization, helper: Agent, home: Path, call: Call
):
    call("write_file", {"path": "a", "text": "x"})
    assert home.is_dir()
    delete_agent(factories.build_administrator(acme), helper)
    assert deletions.finish_expired_deletions() == 0
    assert home.is_dir()
    Deletion.objects.update(expires_at=timezone.now())
    assert deletions.finish_expired_deletions() == 1
    assert not home.exists()
