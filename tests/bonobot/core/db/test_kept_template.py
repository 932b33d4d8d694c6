"""The migrated template database of the tests is reused until the code changes."""

import os
from pathlib import Path

import pytest

from tests import database


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a file of each kind."""
    for name in ("bonobot/models.py", "mcp_servers/presets.json", "bonobot/de.po", "tests/unit.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", ["bonobot/models.py", "mcp_servers/presets.json"])
def test_another_template_is_used_when_a_file_that_migrations_read_changes(
    checkout: Path, name: str
) -> None:
    before = database.compute_digest(checkout)
    (checkout / name).write_text("two", encoding="utf-8")
    changed = database.compute_digest(checkout)
    (checkout / name).rename(checkout / name.replace("s.", "z."))
    assert len({before, changed, database.compute_digest(checkout)}) == 3


def test_another_template_is_used_when_a_library_changes(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = database.compute_digest(checkout)
    info = tmp_path / "libraries" / "other-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: other\nVersion: 1.0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(info.parent))
    assert database.compute_digest(checkout) != before


@pytest.mark.parametrize("name", ["bonobot/de.po", "tests/unit.py"])
def test_the_template_is_used_again_when_other_files_change(checkout: Path, name: str) -> None:
    before = database.compute_digest(checkout)
    (checkout / name).write_text("two", encoding="utf-8")
    os.utime(checkout / "bonobot" / "models.py", (0, 0))
    assert database.compute_digest(checkout) == before


def test_only_the_newest_template_is_kept(tmp_path: Path) -> None:
    template = tmp_path / "template"
    folder = tmp_path / "kept"
    for name in ("one", "two"):
        template.write_text(name, encoding="utf-8")
        database.keep_template(template, folder / f"{name}.sqlite3")
    assert [file.name for file in folder.iterdir()] == ["two.sqlite3"]
    assert (folder / "two.sqlite3").read_text(encoding="utf-8") == "two"
