"""The migrated template database of the tests is reused until a migration changes."""

import ast
import os
from pathlib import Path

import pytest

from tests import database
from tests.parts import ROOT

FILES = ("bonobot/core/db/base.py", "agents/migrations/0001_initial.py", "bonobot/models.py")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a file of each kind."""
    for name in (*FILES, "mcp_servers/presets.json", "bonobot/de.po", "tests/unit.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", FILES[:2])
def test_another_template_is_used_when_a_migration_changes(checkout: Path, name: str) -> None:
    before, _following = database.compute_digests(checkout)
    (checkout / name).write_text("two", encoding="utf-8")
    changed, _following = database.compute_digests(checkout)
    (checkout / name).rename(checkout / name.replace(".py", "_z.py"))
    renamed, _following = database.compute_digests(checkout)
    assert len({before, changed, renamed}) == 3


@pytest.mark.parametrize("name", ["bonobot/models.py", "mcp_servers/presets.json"])
def test_what_follows_migrations_is_done_again_when_other_code_changes(
    checkout: Path, name: str
) -> None:
    before = database.compute_digests(checkout)
    (checkout / name).write_text("two", encoding="utf-8")
    changed = database.compute_digests(checkout)
    assert changed[0] == before[0]
    assert changed[1] != before[1]


def test_another_template_is_used_when_a_library_changes(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, _following = database.compute_digests(checkout)
    info = tmp_path / "libraries" / "other-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: other\nVersion: 1.0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(info.parent))
    assert database.compute_digests(checkout)[0] != before


@pytest.mark.parametrize("name", ["bonobot/de.po", "tests/unit.py"])
def test_the_template_is_used_again_when_other_files_change(checkout: Path, name: str) -> None:
    before = database.compute_digests(checkout)
    (checkout / name).write_text("two", encoding="utf-8")
    os.utime(checkout / "bonobot" / "models.py", (0, 0))
    assert database.compute_digests(checkout) == before


def test_a_change_of_what_a_migration_imports_changes_the_template() -> None:
    imported = {
        module
        for package in database.PACKAGES
        for file in (ROOT / package).glob("**/migrations/*.py")
        for module in _list_imports(file)
        if module.partition(".")[0] in database.PACKAGES
    }
    files = {module.replace(".", "/") + ".py" for module in imported}
    assert len(files) > 3
    assert [name for name in sorted(files) if not database.is_migrating(name)] == []


def _list_imports(file: Path) -> set[str]:
    """Return the modules that a file imports."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            modules.add(str(node.module))
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules


def test_only_the_newest_template_is_kept(tmp_path: Path) -> None:
    template = tmp_path / "template"
    folder = tmp_path / "kept"
    for name in ("one", "two"):
        template.write_text(name, encoding="utf-8")
        database.keep_template(template, folder / f"{name}.sqlite3")
    assert [file.name for file in folder.iterdir()] == ["two.sqlite3"]
    assert (folder / "two.sqlite3").read_text(encoding="utf-8") == "two"
