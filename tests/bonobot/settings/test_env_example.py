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
# These contain what differs between machines and runs.
MACHINE = {"BONOBOT_VAR", "BONOBOT_TOKEN_PEPPERS", "BONOBOT_LAUNCHERS"}


def listed() -> dict[str, str]:
    return dict(LISTED.findall((ROOT / ".env.example").read_text(encoding="utf-8")))


@pytest.fixture
def loaded(tmp_path: Path) -> Any:
    """Return a function that loads the settings in a process of its own."""

    def load(**variables: str) -> dict[str, Any]:
        found = subprocess.run(
            [sys.executable, "-c", SHOW],
            env={"BONOBOT_VAR": str(tmp_path), **variables},
            cwd=ROOT,
            capture_output=True,
            check=False,
            text=True,
        )
        assert not found.returncode, found.stderr
        return dict(json.loads(found.stdout))

    return load


def test_exactly_the_existing_settings_are_listed(loaded: Any) -> None:
    assert sorted(listed()) == sorted(loaded()["declared"])


def test_the_listed_values_are_the_defaults(loaded: Any) -> None:
    given = {name: value for name, value in listed().items() if name not in MACHINE}
    default, example = loaded()["settings"], loaded(**given)["settings"]
    for name in MACHINE:
        default.pop(name), example.pop(name)
    assert example == default


def test_the_listed_launchers_are_the_defaults(loaded: Any) -> None:
    found = loaded()["settings"]["BONOBOT_LAUNCHERS"]
    assert [*listed()["BONOBOT_LAUNCHERS"].split(","), *settings.list_interpreter_paths()] == found
