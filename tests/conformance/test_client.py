"""The official conformance suite judges Bonobot's connections in the role of the client."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.scenarios import BEYOND, COVERED, HANDSHAKE, MODERN, NEED_OAUTH
from tests.parts import NODE, ROOT

pytestmark = pytest.mark.npm

RUNS = [
    (revision, name) for part in (COVERED, BEYOND) for revision in part for name in part[revision]
]
CLIENT = f"{sys.executable} -m tests.conformance.client"


def conformance(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the suite with the Node.js that it needs, which is newer than most machines'."""
    node = NODE / "node_modules" / "node" / "bin" / "node"
    suite = NODE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    for part in (node, suite):
        assert part.exists(), f"`{part.name}` isn't installed: run `npm ci` in {NODE}"
    return subprocess.run(
        [str(node), str(suite), *words],
        capture_output=True,
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), "PYTHONPATH": str(ROOT)},
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("revision", "scenario"), RUNS)
def test_the_client_conforms(revision: str, scenario: str, tmp_path: Path):
    done = conformance(
        *("client", "--command", CLIENT, "--scenario", scenario, "--spec-version", revision),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])
def test_every_scenario_that_a_revision_requires_is_covered_or_named(revision: str, tmp_path: Path):
    listed = conformance("list", "--requirements", revision, cwd=tmp_path).stdout
    scored = listed.partition("Client scenarios")[2].partition("Run and reported")[0]
    required = re.findall(r"^\s+- (\S+)$", scored, re.MULTILINE)
    assert sorted(required) == sorted([*COVERED[revision], *NEED_OAUTH[revision]])
