"""A clone before installation: make targets, the lock file, dependencies and links."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bonobot import __version__
from tests.parts import ROOT

PINNED = re.compile(r"^([A-Za-z0-9._-]+)==\S+", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!https?://|#)([^)#]+)\)")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def load_project() -> dict[str, Any]:
    return tomllib.loads(read("pyproject.toml"))


def list_required_packages() -> set[str]:
    configuration = load_project()
    extras = configuration["project"]["optional-dependencies"].values()
    lines = [*configuration["project"]["dependencies"], *configuration["dependency-groups"]["dev"]]
    lines += [line for extra in extras for line in extra]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
    )


def test_every_dependency_is_locked_with_hashes() -> None:
    lock = read("requirements.lock")
    pinned = {canonicalize_name(name) for name in PINNED.findall(lock)}
    assert list_required_packages() <= pinned, list_required_packages() - pinned
    entries = re.split(r"\n(?=[a-z0-9])", lock[lock.index("\namqp==") :].strip(), flags=re.I)
    assert all("--hash=sha256:" in entry for entry in entries)


def test_the_lock_file_has_no_registry_urls() -> None:
    assert not re.search(r"--(extra-)?index-url|--find-links|://", read("requirements.lock"))


def test_every_runtime_dependency_has_its_reason() -> None:
    section = read("pyproject.toml").partition("\ndependencies = [")[2].partition("\n]")[0]
    lines = [line.strip() for line in section.splitlines() if line.strip()]
    assert lines
    assert not [line for line in lines if not re.search(r'",\s+# \w', line)]


def test_the_version_is_the_latest_release_of_the_changelog() -> None:
    releases = re.findall(r"^## \[(\d[^\]]*)\]", read("CHANGELOG.md"), re.MULTILINE)
    assert __version__ == releases[0]
    assert "version" in load_project()["project"]["dynamic"]
    assert load_project()["tool"]["hatch"]["version"]["path"] == "CHANGELOG.md"
    assert re.search(load_project()["tool"]["hatch"]["version"]["pattern"], f"## [{__version__}]")


def test_help_explains_every_target() -> None:
    output = make().stdout
    targets = re.search(r"^\.PHONY: (.+)$", read("Makefile"), re.MULTILINE)
    assert targets
    assert [name for name in targets[1].split() if f"make {name} " not in output] == []


def test_make_quick_checks_no_generated_migration() -> None:
    lines = [line for line in make("quick", "-n").stdout.splitlines() if "-m ruff" in line]
    assert len(lines) == 2
    assert all("--force-exclude" in line for line in lines)


def test_a_python_that_is_too_old_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    old.chmod(0o755)
    result = make("install", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}")
    assert result.returncode == 2
    assert "needs Python 3.11 or newer" in result.stderr
    assert str(old) in result.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("name", ["README.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_to_files_are_valid(name: str) -> None:
    assert [link for link in LINK.findall(read(name)) if not (ROOT / link).exists()] == []


def test_the_ci_script_is_valid_shell() -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is absent")
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    subprocess.run([bash, "-n", ".ci/run"], cwd=ROOT, check=True)
