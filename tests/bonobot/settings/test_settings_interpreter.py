"""The running Python is known by all of its names, and by no others."""

import sys
from pathlib import Path

import pytest

from bonobot import settings


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment whose `python3` is the running interpreter and whose `python` is another."""
    for name in ("real", "another"):
        (tmp_path / name).touch()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (tmp_path / "python").symlink_to(tmp_path / "another")
    for name in ("python3", version):
        (tmp_path / name).symlink_to(tmp_path / "real")
    monkeypatch.setattr(sys, "executable", str(tmp_path / version))
    return tmp_path


def test_all_names_of_the_interpreter_are_known_with_the_used_one_first(environment: Path) -> None:
    assert settings.list_interpreter_paths() == (sys.executable, str(environment / "python3"))
    (environment / "python").unlink()
    (environment / "python").symlink_to(environment / "real")
    assert set(settings.list_interpreter_paths()) == {
        sys.executable,
        str(environment / "python"),
        str(environment / "python3"),
    }


def test_an_interpreter_by_itself_has_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "custom"))
    assert settings.list_interpreter_paths() == (sys.executable,)
