"""The wheel as a user installs it: in its own environment, started in an empty folder."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import sysconfig
import venv
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from bonobot import __version__
from tests.parts import ROOT
from tests.processes import INHERITED, find_unused_port, start_process
from tests.wait import eventually

pytestmark = [pytest.mark.worker, pytest.mark.whole]


def run_command(*command: str | Path) -> None:
    result = subprocess.run(command, capture_output=True, check=False, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr


def build_install_command(python: Path) -> list[str | Path]:
    """Return a command that installs packages for a Python: uv if available, else pip."""
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        return [uv, "pip", "install", "--offline", "--python", python]
    return [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        python,
        "install",
    ]


def install_wheel(folder: Path) -> Path:
    """Build the wheel and install it offline, with our dependencies but without the sources."""
    run_command(
        sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder
    )
    (wheel,) = folder.glob("*.whl")
    assert f"-{__version__}-" in wheel.name
    home = folder / "environment"
    venv.create(home, symlinks=True)
    run_command(
        *build_install_command(home / "bin" / "python"), "--quiet", "--no-deps", "--no-index", wheel
    )
    (library,) = home.glob("lib/python*/site-packages")
    # Paths of a `.pth` file come last; `.pth` files in them (our editable install) aren't read.
    (library / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    assert {path.name for path in library.iterdir()} >= {"bonobot", "agents", "mcp_servers"}
    assert not (library / "templates").exists()
    documentation = library / "bonobot" / "documentation"
    assert (documentation / "how-to" / "admin.md").is_file()
    assert (documentation / "images" / "drawings" / "door.svg").is_file()
    assert not list(documentation.rglob("*.py"))
    show = "from bonobot.core.documentation import pages as p; print(p.load_navigation()[0].title)"
    titles = subprocess.check_output([home / "bin" / "python", "-c", show], text=True, cwd=folder)
    assert titles == "Start\n"
    assert len(list(library.glob("bonobot/locale/*/LC_MESSAGES/django.mo"))) == 2
    return home / "bin" / "bonobot"


def fetch(url: str) -> tuple[int, str]:
    response = httpx.get(url, timeout=20)
    return response.status_code, response.text


def platform_presets(database: Path) -> list[str]:
    """Return the slugs of the presets that are visible to every organization."""
    with closing(sqlite3.connect(database)) as rows:
        query = "SELECT slug FROM mcp_servers_preset WHERE organization_id IS NULL"
        return [slug for (slug,) in rows.execute(query)]


def test_an_installed_wheel_runs_in_an_empty_folder(tmp_path: Path) -> None:
    bonobot = install_wheel(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    env = {name: os.environ[name] for name in INHERITED if name in os.environ} | {"REDIS_URL": ""}
    port = find_unused_port()
    command = [str(bonobot), "up", "--no-demo", "--no-worker", "--port", str(port)]
    process = start_process("up", command, folder=tmp_path, env=env, cwd=empty)
    try:
        eventually(lambda: process.require() and "is ready" in process.log(), within=90)
        url = f"http://127.0.0.1:{port}"
        assert fetch(f"{url}/healthz") == (200, '{"status": "ok"}')
        assert "bb-line" in fetch(f"{url}/static/bonobot/admin.css")[1]
        assert "Sign in · Bonobot" in " ".join(fetch(f"{url}/admin/login/")[1].split())
        in_german = httpx.get(f"{url}/admin/login/", headers={"Accept-Language": "de"}, timeout=20)
        assert "Anmelden · Bonobot" in " ".join(in_german.text.split())
        assert (
            json.loads(fetch(f"{url}/api/schema?format=json")[1])["info"]["version"] == __version__
        )
        assert f"Bonobot {__version__} is ready" in process.log()
        assert process.stop() == 0
    finally:
        process.kill()
    assert [path.name for path in empty.iterdir()] == ["var"]
    keys = empty / "var" / "keys"
    assert {path.stat().st_mode & 0o777 for path in keys.iterdir()} == {0o600}
    log = process.log()
    assert re.search(r"^Applying \d+ migrations", log, re.MULTILINE)
    assert not re.search(r"^(worker|beat) *│", log, re.MULTILINE), "`--no-worker`"
    assert not re.search(r"^  password ", log, re.MULTILINE), "`--no-demo`"
    assert re.search(rf"^  sign up   {url}/admin/account/first/", log, re.MULTILINE)
    assert len(platform_presets(empty / "var" / "bonobot.sqlite3")) >= 40
    assert str(ROOT) not in log
