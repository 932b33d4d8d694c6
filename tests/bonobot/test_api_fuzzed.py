"""Schemathesis: requests made from the OpenAPI document, sent to a real server with real rows.

What is sent fits the document or breaks it on purpose; every answer must be one that the document
describes. `TEST_FUZZING=whole` (`make fuzz`) tries all that Schemathesis can think of.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bonobot.tenancy.models import Organization
from bonobot.tenancy.roles import Role
from bonobot.tenancy.tokens import issue
from tests.agents import casting
from tests.inventory import everything
from tests.parts import ROOT
from tests.processes import Web

SETTINGS = ROOT / "tests" / "fuzzing.toml"
WHOLE = os.environ.get("TEST_FUZZING") == "whole"
EXAMPLES = "30" if WHOLE else "1"
PHASES = "examples,coverage,fuzzing" if WHOLE else "examples,fuzzing"


@pytest.fixture
def acme(live_web: Web) -> Organization:
    return casting.organization()


def settings(folder: Path, where: Organization) -> Path:
    """Write the settings with the ids of one of everything; what is removed is there twice."""
    known, spare = everything(where), everything(where, "-spare")
    path = folder / "schemathesis.toml"
    path.write_text(
        f"{SETTINGS.read_text()}\n{_pairs(known)}\n"
        f'[[operations]]\ninclude-method = "DELETE"\n[operations.parameters]\n{_pairs(spare)}'
    )
    return path


def _pairs(values: dict[str, str]) -> str:
    return "".join(f'"path.{name}" = "{value}"\n' for name, value in values.items())


def run(web: Web, settings: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run Schemathesis and return how it ended."""
    command = [Path(sys.executable).with_name("st"), "--config-file", settings]
    command += ["run", f"{web.url}/api/schema", "--phases", PHASES, *options]
    return subprocess.run(
        command,
        cwd=settings.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_an_owner_is_answered_as_the_document_says(
    acme: Organization, live_web: Web, tmp_path: Path
) -> None:
    written = settings(tmp_path, acme)
    _, token = issue(casting.administrator(acme), name="fuzz", role=Role.OWNER)
    ran = run(live_web, written, "-n", EXAMPLES, "-H", f"Authorization: Bearer {token}")
    assert ran.returncode == 0, ran.stdout


def test_a_member_is_answered_as_the_document_says(
    acme: Organization, live_web: Web, tmp_path: Path
) -> None:
    written = settings(tmp_path, acme)
    _, token = issue(casting.administrator(acme), name="fuzz", role=Role.MEMBER)
    ran = run(live_web, written, "-n", "1", "-H", f"Authorization: Bearer {token}")
    assert ran.returncode == 0, ran.stdout


def test_nobody_is_answered_as_the_document_says(
    acme: Organization, live_web: Web, tmp_path: Path
) -> None:
    ran = run(live_web, settings(tmp_path, acme), "-n", "1")
    assert ran.returncode == 0, ran.stdout
