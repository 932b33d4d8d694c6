"""`.env.example` lists every setting, with the default that the settings have."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bonobot import settings
from tests.processes import ROOT

LISTED = re.compile(r"^#([A-Z_]+)=(.*)$", re.MULTILINE)
SHOW = """
import json, sys
from bonobot import settings
from bonobot.core import environment
kept = {name: value for name, value in vars(settings).items() if name.startswith("BONOBOT_")}
declared = list(environment.list_variables())
json.dump({"declared": declared, "settings": kept}, sys.stdout, default=str)
"""
# These differ between machines and runs.
MACHINE = {"BONOBOT_VAR", "BONOBOT_TOKEN_PEPPERS", "BONOBOT_LAUNCHERS"}


def read_listed_values() -> dict[str, str]:
    return dict(LISTED.findall((ROOT / ".env.example").read_text(encoding="utf-8")))


@pytest.fixture
def load_settings(tmp_path: Path) -> Any:
    """Return a function that loads the settings in its own process."""

    def load(**variables: str) -> dict[str, Any]:
        result = subprocess.run(
            [sys.executable, "-c", SHOW],
            env={"BONOBOT_VAR": str(tmp_path), **variables},
            cwd=ROOT,
            capture_output=True,
            check=False,
            text=True,
        )
        assert not result.returncode, result.stderr
        return dict(json.loads(result.stdout))

    return load


def test_exactly_the_existing_settings_are_listed(load_settings: Any) -> None:
    assert sorted(read_listed_values()) == sorted(load_settings()["declared"]), (
        "list each variable in .env.example, and no others"
    )


def test_the_listed_values_are_the_defaults(load_settings: Any) -> None:
    values = {name: value for name, value in read_listed_values().items() if name not in MACHINE}
    default, example = load_settings()["settings"], load_settings(**values)["settings"]
    for name in MACHINE:
        default.pop(name), example.pop(name)
    assert example == default, "correct the defaults in .env.example"


def test_the_listed_launchers_are_the_defaults(load_settings: Any) -> None:
    launchers = load_settings()["settings"]["BONOBOT_LAUNCHERS"]
    assert [
        *read_listed_values()["BONOBOT_LAUNCHERS"].split(","),
        *settings.list_interpreter_paths(),
    ] == launchers, "correct BONOBOT_LAUNCHERS in .env.example"
