"""The wheel, as somebody installs it: in an environment of its own, started in an empty folder."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import httpx
import pytest

from bonobot import __version__
from tests.eventually import eventually
from tests.parts import ROOT
from tests.processes import INHERITED, start, unused_port

pytestmark = pytest.mark.worker


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    ended = subprocess.run(command, capture_output=True, check=False, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr


def installed(folder: Path) -> Path:
    """Build the wheel and install it where it finds its dependencies, not the sources; offline."""
    pip("wheel", ".", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder)
    (wheel,) = folder.glob("*.whl")
    assert f"-{__version__}-" in wheel.name
    home = folder / "environment"
    venv.create(home, symlinks=True)
    pip("--python", home / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    (library,) = home.glob("lib/python*/site-packages")
    # Paths of a `.pth` file come last, and those that lie there (our editable install) aren't read.
    (library / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    assert {path.name for path in library.iterdir()} >= {"bonobot", "agents", "mcp_servers"}
    assert not (library / "templates").exists()
    return home / "bin" / "bonobot"


def fetched(url: str) -> tuple[int, str]:
    answer = httpx.get(url, timeout=20)
    return answer.status_code, answer.text


def test_an_installed_wheel_runs_in_an_empty_folder(tmp_path: Path) -> None:
    bonobot = installed(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    env = {name: os.environ[name] for name in INHERITED if name in os.environ} | {"REDIS_URL": ""}
    port = unused_port()
    command = [str(bonobot), "up", "--no-demo", "--no-worker", "--port", str(port)]
    process = start("up", command, folder=tmp_path, env=env, cwd=empty)
    try:
        eventually(lambda: process.require() and "is ready" in process.log(), within=90)
        url = f"http://127.0.0.1:{port}"
        assert fetched(f"{url}/healthz") == (200, '{"status": "ok"}')
        assert "bb-line" in fetched(f"{url}/static/bonobot/admin.css")[1]
        assert "Log in | Bonobot" in " ".join(fetched(f"{url}/admin/login/")[1].split())
        assert (
            json.loads(fetched(f"{url}/api/schema?format=json")[1])["info"]["version"]
            == __version__
        )
        assert f"Bonobot {__version__} is ready" in process.log()
    finally:
        process.stop()
    assert [path.name for path in empty.iterdir()] == ["var"]
    assert str(ROOT) not in process.log()
