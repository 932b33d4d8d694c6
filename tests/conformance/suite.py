"""The official conformance suite: running it, and reading what it says of a server."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.parts import NODE, ROOT

LONGEST_S = 240
_FOLDER = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


def conformance(*words: str, cwd: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run the suite with the Node.js that it needs, which is newer than most machines'."""
    node = NODE / "node_modules" / "node" / "bin" / "node"
    suite = NODE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    for part in (node, suite):
        assert part.exists(), f"`{part.name}` isn't installed: run `npm ci` in {NODE}"
    return subprocess.run(
        [str(node), str(suite), *words],
        capture_output=True,
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), "PYTHONPATH": str(ROOT), **more},
        text=True,
        timeout=LONGEST_S,
        check=False,
    )


def required(role: str, revision: str, folder: Path) -> list[str]:
    """Return the scenarios that a revision requires of a `Client` or a `Server`."""
    listed = conformance("list", "--requirements", revision, cwd=folder).stdout
    scored = listed.partition(f"{role} scenarios")[2].partition("\n\n")[0]
    return re.findall(r"^\s+- (\S+)$", scored, re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    """What the suite said of a server: the checks of each scenario."""

    status: int
    said: str
    checks: Mapping[str, tuple[dict[str, Any], ...]]

    def passed(self) -> dict[str, int]:
        """Return how many checks each scenario without a failure passed."""
        return {
            name: sum(check["status"] == "SUCCESS" for check in checks)
            for name, checks in self.checks.items()
            if not any(check["status"] == "FAILURE" for check in checks)
        }

    def faults(self) -> list[str]:
        """Return a line for each check that failed or warned."""
        return [
            f"{name}: {check['id']}: {check['status']}: {check.get('errorMessage', '')}"
            for name, checks in sorted(self.checks.items())
            for check in checks
            if check["status"] in ("FAILURE", "WARNING")
        ]


def judged(url: str, folder: Path, *words: str) -> Verdict:
    """Have the suite judge the server at `url`."""
    folder.mkdir(exist_ok=True)
    out = folder / "judged"
    done = conformance("server", "--url", url, *words, "-o", str(out), cwd=folder)
    found = dict(_read(out)) if out.exists() else {}
    return Verdict(done.returncode, done.stdout + done.stderr, found)


def _read(out: Path) -> Iterator[tuple[str, tuple[dict[str, Any], ...]]]:
    for file in sorted(out.glob("*/checks.json")):
        if named := _FOLDER.fullmatch(file.parent.name):
            yield named[1], tuple(json.loads(file.read_text(encoding="utf-8")))
