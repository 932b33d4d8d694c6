"""Record the database of a release, so that every later one is tested to take it over.

Run in a checkout of the release with its environment, once for each database, when it is released:

    cd ~/releases/0.2.0
    python tests/upgrades/record.py . ~/bonobot/tests/upgrades/0.2.0
    DATABASE_URL=postgresql://… python tests/upgrades/record.py . ~/bonobot/tests/upgrades/0.2.0

It drives the release as its user would: the demo organization, a session, a refused call, tokens, a
server with secrets. What it writes holds keys and tokens of an installation that never was.
"""

import argparse
import gzip
import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

PORT = 28990
# What stands for the checkout's folder in what is written.
FOLDER = "/opt/bonobot"
READY_WITHIN_S = 90
HEADER = "X-Key=recorded-header-value"
TOKEN = "recorded-bearer-token"
# What an administrator of any release has done; the names are those that scripts rely on.
OPERATIONS = {
    "member": "tokens create ci --role member --agent demo",
    "owner": "tokens create owner --role owner",
    "session": "agents run demo 'What time is it in Paris?'",
    "refused": "agents run demo 'What does https://example.com say?'",
    "server": f"mcp add kept --url http://127.0.0.1:9/mcp --header {HEADER} --bearer {TOKEN}"
    " --allow-private",
    "failed": """mcp test-tool time get_current_time '{"timezone": "Mars/Base"}'""",
}


class Release:
    """A checkout of a release, with a folder of its own for what it keeps."""

    def __init__(self, checkout: Path, var: Path) -> None:
        self.python = checkout / ".venv" / "bin" / "python"
        self.checkout = checkout
        self.var = var
        kept = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
        database = os.environ.get("DATABASE_URL")
        self.env = kept | {
            "BONOBOT_VAR": str(var),
            "PYTHONPATH": str(checkout),
            "DJANGO_SETTINGS_MODULE": "bonobot.settings",
            **({"DATABASE_URL": database} if database else {}),
        }

    def command(self, *words: str) -> list[str]:
        """Return the command line of one of its commands."""
        return [str(self.python), "-m", "bonobot", *words]

    def run_command(self, line: str) -> dict[str, Any]:
        """Run an operation; return its JSON, or the problem if it was refused."""
        done = subprocess.run(
            [*self.command(*shlex.split(line)), "--json"],
            cwd=self.checkout,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        sys.stdout.write(f"{done.returncode}  {line}\n{done.stderr}")
        return json.loads(done.stdout) if done.stdout.strip().startswith("{") else {}


def wait_until_ready(up: "subprocess.Popen[str]") -> None:
    """Return when the release answers; raises TimeoutError."""
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and up.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/healthz", timeout=2):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
    raise TimeoutError("the release did not start")


def dump(release: Release) -> tuple[str, str]:
    """Return the name of the database's kind and all of it as SQL."""
    url = release.env.get("DATABASE_URL")
    if url:
        wanted = ("pg_dump", "--inserts", "--no-owner", "--no-privileges", url)
        text = subprocess.run(wanted, capture_output=True, text=True, check=True).stdout
        # `\restrict` and its like are for psql; what reads this sends SQL.
        return "postgresql", "".join(
            line for line in text.splitlines(keepends=True) if not line.startswith("\\")
        )
    with sqlite3.connect(release.var / "bonobot.sqlite3") as database:
        return "sqlite", "\n".join(database.iterdump())


def record(checkout: Path, folder: Path) -> None:
    """Make the installation, use it and write its keys, its facts and its database."""
    with tempfile.TemporaryDirectory() as scratch:
        release = Release(checkout, Path(scratch))
        up = subprocess.Popen(
            release.command("up", "--port", str(PORT)),
            cwd=checkout,
            env=release.env,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            wait_until_ready(up)
            facts = {name: release.run_command(line) for name, line in OPERATIONS.items()}
        finally:
            up.send_signal(signal.SIGINT)
            said, _ = up.communicate(timeout=60)
        facts["login"] = {
            key: line.split()[1]
            for key in ("user", "password")
            for line in said.splitlines()
            if line.strip().startswith(f"{key} ")
        }
        kind, text = dump(release)
        target = folder / kind
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        shutil.copytree(release.var / "keys", target / "keys")
        written = json.dumps(facts, indent=2) + "\n"
        written, text = (part.replace(str(checkout), FOLDER) for part in (written, text))
        (target / "facts.json").write_text(written, encoding="utf-8")
        (target / "database.sql.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    sys.stdout.write(f"wrote {target}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="the release, with its .venv")
    parser.add_argument("folder", type=Path, help="where to write, named by the version")
    arguments = parser.parse_args()
    record(arguments.checkout.resolve(), arguments.folder)
