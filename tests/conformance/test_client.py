"""The official conformance suite tests Bonobot in the role of the client."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from tests.conformance.client import DOCUMENT, RELAY
from tests.conformance.scenario_listener import relay
from tests.conformance.scenarios import (
    CLIENT_SKILLS,
    EARLIER_SERVERS,
    HANDSHAKE,
    MODERN,
    SELECTION,
    UNSUPPORTED,
)
from tests.conformance.suite import CONFORMANCE, LONGEST_S, conformance, required
from tests.parts import ROOT

pytestmark = [pytest.mark.npm, pytest.mark.django_db(transaction=True)]

CLIENT = f"{sys.executable} -m tests.conformance.client"
PAGE = ROOT / "docs" / "conformance.md"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[int]:
    monkeypatch.setattr(settings, "BONOBOT_OAUTH_CLIENT_ID", DOCUMENT)
    monkeypatch.setattr(settings, "BONOBOT_WORKLOAD_TOKENS", str(tmp_path / "tokens"))
    with relay() as relay_port:
        yield relay_port


@pytest.mark.skipif(bool(CONFORMANCE), reason="all scenarios include these")
@pytest.mark.parametrize(("revision", "scenario"), SELECTION)
def test_the_client_conforms(revision: str, scenario: str, port: int, tmp_path: Path):
    completed = conformance(
        *("client", "--command", CLIENT, "--scenario", scenario, "--spec-version", revision),
        cwd=tmp_path,
        **{RELAY: str(port)},
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.skipif(not CONFORMANCE, reason="`make conformance` runs all scenarios")
@pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])
def test_all_scenarios_pass_except_unsupported_ones(revision: str, port: int, tmp_path: Path):
    completed = conformance(
        *("client", "--command", CLIENT, "--requirements", revision),
        *("--timeout", f"{LONGEST_S * 1000}"),
        cwd=tmp_path,
        **{RELAY: str(port)},
    )
    output = completed.stdout + completed.stderr
    assert completed.returncode == 0, output
    marks = {name: mark for mark, name in re.findall(r"^([✓✗]) (\S+): \d+ passed", output, re.M)}
    assert set(required("Client", revision)) <= set(marks)
    assert {name for name, mark in marks.items() if mark == "✗"} == set(UNSUPPORTED)


@pytest.mark.skipif(not CONFORMANCE, reason="`make conformance` runs all scenarios")
def test_servers_of_2025_03_26_are_supported(port: int, tmp_path: Path):
    completed = conformance(
        *("client", "--command", CLIENT, "--suite", "backcompat"),
        *("--timeout", f"{LONGEST_S * 1000}"),
        cwd=tmp_path,
        **{RELAY: str(port)},
    )
    output = completed.stdout + completed.stderr
    assert re.findall(r"^✓ (\S+): \d+ passed", output, re.M) == list(EARLIER_SERVERS), output
    assert completed.returncode == 0, output


@pytest.mark.skipif(not CONFORMANCE, reason="`make conformance` runs all scenarios")
@pytest.mark.parametrize("scenario", CLIENT_SKILLS)
def test_skills_are_verified(scenario: str, port: int, tmp_path: Path):
    completed = conformance(
        *("client", "--command", CLIENT, "--scenario", scenario, "--spec-version", MODERN),
        "--force",
        cwd=tmp_path,
        **{RELAY: str(port)},
    )
    assert "1/1, 0 failed, 0 warnings" in completed.stdout + completed.stderr


@pytest.mark.skipif(not CONFORMANCE, reason="`make conformance` asks the suite")
@pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])
def test_the_conformance_page_lists_every_required_scenario(revision: str):
    page = PAGE.read_text(encoding="utf-8")
    table = page.partition(f"## {revision}")[2].partition("## ")[0]
    assert re.findall(r"^\| `(\S+)` \|", table, re.MULTILINE) == required("Client", revision)


@pytest.mark.skipif(not CONFORMANCE, reason="`make conformance` asks the suite")
def test_the_conformance_page_lists_every_scenario_of_the_suite(tmp_path: Path):
    output = conformance("list", cwd=tmp_path).stdout
    scenarios = re.findall(r"^\s+- (\S+) \[", output, re.MULTILINE)
    listed = re.findall(r"^\| `(\S+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {*scenarios} == {*listed}


def test_the_conformance_page_lists_unsupported_scenarios():
    page = PAGE.read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\S+)` \| no", page, re.MULTILINE)
    assert set(listed) == set(UNSUPPORTED)
