"""Run a benchmark on SQLite and, if available, on PostgreSQL, in temporary databases.

Each measurement runs in a separate process: `python bench_x.py measure` prints lines of values.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
POSTGRES = os.environ.get("BENCH_POSTGRES", "postgresql://postgres@127.0.0.1:5432/postgres")
REDIS = os.environ.get("BENCH_REDIS", "")  # beside PostgreSQL; nothing of it is changed


def measure_each_database(script: str, console: Console) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the name of each database, and the lines that `script` printed for it."""
    with tempfile.TemporaryDirectory(prefix="bonobot-bench-") as folder:
        Path(folder).chmod(0o700)
        databases = {
            "SQLite": lambda: _run(script, f"sqlite:///{folder}/bench.sqlite3", folder),
            "PostgreSQL": lambda: _run_on_postgres(script, folder),
        }
        for name, measured in databases.items():
            with console.status(f"measuring {name}"):
                lines = measured()
            if lines:
                yield name, lines
            else:
                console.print(f"{name} isn't available at {POSTGRES.rpartition('@')[2]}: skipped.")


def _run(script: str, url: str, folder: str) -> list[list[str]]:
    """Measure a database in a separate process; return the lines that it printed."""
    process = subprocess.run(
        [sys.executable, script, "measure"],
        cwd=ROOT,
        env=build_environment(url, folder),
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        sys.exit(process.stderr)
    return [line.split() for line in process.stdout.splitlines()]


def build_environment(url: str, folder: str) -> dict[str, str]:
    """Return the environment of a process that measures the database at `url`."""
    return os.environ | {
        "BONOBOT_VAR": folder,
        "DATABASE_URL": url,
        "REDIS_URL": REDIS if url.startswith("postgres") else "",
        "DJANGO_SETTINGS_MODULE": os.environ.get("DJANGO_SETTINGS_MODULE", "bonobot.settings"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }


def _run_on_postgres(script: str, folder: str) -> list[list[str]]:
    """Measure PostgreSQL in a temporary database; return no lines if it isn't available."""
    import psycopg
    from psycopg import sql

    name = f"bonobot_bench_{os.getpid()}"
    try:
        server = psycopg.connect(POSTGRES, autocommit=True, connect_timeout=3)
    except psycopg.OperationalError:
        return []
    with server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            return _run(script, f"{POSTGRES.rpartition('/')[0]}/{name}", folder)
        finally:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
