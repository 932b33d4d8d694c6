"""The command `bonobot`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bonobot import __main__ as command
from bonobot import __version__
from bonobot.core import runtime
from tests.processes import build_environment

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"], ["-h"]])
def test_without_a_command_all_commands_are_listed(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command.main(arguments)
    output = capsys.readouterr().out
    own, others = output.split("Django's commands:")
    assert "COMMAND --help" in own
    assert "\n  up " in own
    assert "\n  doctor " in own
    assert "migrate" in others
    assert max(len(line) for line in output.splitlines()) < 120


def test_a_command_closes_the_runtime_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(runtime, "close_runtime", lambda: closed.append(True))
    command.main(["help", "check"])
    assert capsys.readouterr().out.strip()
    assert closed == [True]


def test_a_short_command_never_searches_all_objects_for_garbage() -> None:
    program = (
        "import atexit, gc\n"
        "searched = []\n"
        "gc.callbacks.append(lambda phase, info: searched.append(info['generation']))\n"
        "atexit.register(lambda: print(2 in searched, gc.get_freeze_count() > 0))\n"
        "from bonobot.__main__ import main\n"
        "main(['mcp', 'list', '--help'])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.splitlines()[-1] == "False True"


def test_colors_are_disabled_by_an_option_before_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    command.main(["--no-color", "version"])
    assert capsys.readouterr().out == f"Bonobot {__version__}\n"
    assert os.environ.pop("NO_COLOR") == "1"


@pytest.mark.parametrize("argument", ["--version", "version"])
def test_the_version_is_the_products(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    command.main([argument])
    assert capsys.readouterr().out == f"Bonobot {__version__}\n"


@pytest.mark.parametrize("start", [["manage.py"], ["-m", "bonobot"]])
def test_manage_py_and_the_module_run_the_same_commands(start: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, *start, "no_such_command"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert "Unknown command: 'no_such_command'" in result.stderr
    assert ("bonobot help" if "-m" in start else "manage.py help") in result.stderr


@pytest.mark.parametrize(
    ("content", "code", "expected"),
    [
        (b"", "database_unavailable", "bonobot migrate"),
        (b"no database " * 99, "database_unavailable", "doctor"),
        (None, "settings_wrong", "DATABASE_URL"),
    ],
    ids=["not migrated", "spoilt", "in no folder"],
)
def test_an_unusable_database_is_reported_without_a_traceback(
    tmp_path: Path, content: bytes | None, code: str, expected: str
) -> None:
    file = tmp_path / ("x.sqlite3" if content is not None else "nowhere/x.sqlite3")
    if content is not None:
        file.write_bytes(content)
    environment = build_environment({"DATABASE_URL": f"sqlite:///{file}"})
    del environment["DJANGO_SETTINGS_MODULE"]  # a command that only reads rows has its own
    result = subprocess.run(
        [sys.executable, "-m", "bonobot", "mcp", "list"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith(f"{code}: ")
    assert expected in result.stderr
    assert "Traceback" not in result.stderr
