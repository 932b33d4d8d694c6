"""Runs the official conformance suite and reads its results."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.parts import NODE, ROOT

# Empty: a selection of scenarios. "pairs": all scenarios, each in few combinations of revision,
# server, and labels, for CI. "whole": in all combinations, for `make conformance`.
CONFORMANCE = os.environ.get("TEST_CONFORMANCE", "")
LONGEST_S = 240
_FOLDER = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


def conformance(*arguments: str, cwd: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run the suite to its end."""
    return subprocess.run(
        _build_command(arguments),
        capture_output=True,
        cwd=cwd,
        env=_build_environment(cwd) | more,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )


@contextmanager
def start_conformance(*arguments: str, cwd: Path) -> "Iterator[subprocess.Popen[str]]":
    """Start the suite, whose output says what a person has to do."""
    with subprocess.Popen(
        _build_command(arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env=_build_environment(cwd),
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _build_command(arguments: Iterable[str]) -> list[str]:
    """Return the command of the suite with its own Node.js, newer than most installed ones."""
    node = NODE / "node_modules" / "node" / "bin" / "node"
    suite = NODE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    for part in (node, suite):
        assert part.exists(), f"`{part.name}` isn't installed: run `npm ci` in {NODE}"
    return [str(node), str(suite), *arguments]


def _build_environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT)}


@cache
def _list_requirements(revision: str) -> str:
    """Return what the suite prints of a revision; it takes a second to start."""
    with tempfile.TemporaryDirectory() as folder:
        return conformance("list", "--requirements", revision, cwd=Path(folder)).stdout


def required(role: str, revision: str) -> list[str]:
    """Return the scenarios that a revision requires of a `Client` or a `Server`."""
    scored = _list_requirements(revision).partition(f"{role} scenarios")[2].partition("\n\n")[0]
    return re.findall(r"^\s+- (\S+)$", scored, re.MULTILINE)


@dataclass(frozen=True)
class SuiteResult:
    """The suite's result for a server: the checks of each scenario."""

    status: int
    output: str
    checks: Mapping[str, tuple[dict[str, Any], ...]]

    def passed(self) -> dict[str, int]:
        """Return the number of passed checks of each scenario without a failure."""
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


def run_server_suite(url: str, folder: Path, *arguments: str) -> SuiteResult:
    """Run the suite against the server at `url`."""
    folder.mkdir(exist_ok=True)
    output_folder = folder / "judged"
    completed = conformance(
        "server", "--url", url, *arguments, "-o", str(output_folder), cwd=folder
    )
    checks = dict(_read(output_folder)) if output_folder.exists() else {}
    return SuiteResult(completed.returncode, completed.stdout + completed.stderr, checks)


def _read(output_folder: Path) -> Iterator[tuple[str, tuple[dict[str, Any], ...]]]:
    for file in sorted(output_folder.glob("*/checks.json")):
        if match := _FOLDER.fullmatch(file.parent.name):
            yield match[1], tuple(json.loads(file.read_text(encoding="utf-8")))
