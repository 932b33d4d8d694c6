"""Optional parts of the system that some groups of tests need.

A group whose part is missing is skipped and listed at the end of the run. `TEST_REQUIRES` (a
comma-separated list of groups) turns a missing part into a failure; CI sets it.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NODE = ROOT / "tests" / "npm"
NODE_SERVERS = NODE / "node_modules" / ".bin"
CLIENTS = ROOT / "tests" / "clients"
FIRST_SDK = ROOT / ".venv-sdk1" / "bin" / "python"
FASTMCP = ROOT / ".venv-fastmcp" / "bin" / "python"


@dataclass(frozen=True)
class Part:
    """A group of tests, what it needs and how to get it."""

    group: str
    title: str
    find: Callable[[], str]
    remedy: str


def find_chromium() -> str:
    """Return the path of Chromium, or an empty string; the headless shell is faster."""
    names = (
        *("chromium-headless-shell", "chromium", "chromium-browser"),
        *("google-chrome", "google-chrome-stable"),
    )
    return next((path for name in names if (path := shutil.which(name))), "")


def find_npm_servers() -> str:
    """Return the folder with the servers that npm installed, blank when there is none."""
    return str(NODE_SERVERS) if NODE_SERVERS.is_dir() and shutil.which("node") else ""


def find_first_sdk() -> str:
    """Return the Python beside which the first MCP SDK is installed, blank when there is none."""
    return str(FIRST_SDK) if FIRST_SDK.is_file() else ""


def find_fastmcp() -> str:
    """Return the Python beside which fastmcp is installed, blank when there is none."""
    return str(FASTMCP) if FASTMCP.is_file() else ""


def find_postgres() -> str:
    """Return the run's PostgreSQL, blank when the run is on another database."""
    from django.conf import settings

    database = settings.DATABASES["default"]
    if database["ENGINE"] != "django.db.backends.postgresql":
        return ""
    return f"{database['HOST'] or 'socket'}:{database['PORT'] or 5432}"


def find_redis() -> str:
    """Return the run's Redis without its password, blank when the run has none."""
    from django.conf import settings

    return str(settings.REDIS_URL).rpartition("@")[2].removeprefix("redis://")


def find_sandbox() -> str:
    """Return the available sandbox, or an empty string."""
    from mcp_servers.client.sandbox import find_sandbox_problem

    return (
        ""
        if find_sandbox_problem("bubblewrap", "none") or find_sandbox_problem("namespaces", "none")
        else "bubblewrap"
    )


def find_corpus() -> str:
    """Return the folder of attack samples that the run was given, blank when it has none."""
    folder = os.environ.get("TEST_CORPUS", "")
    return folder if folder and Path(folder).is_dir() else ""


def find_nginx() -> str:
    """Return the path of nginx, blank when there is none."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin") or ""


def find_promtool() -> str:
    """Return the path of what checks Prometheus's rules, blank when there is none."""
    return shutil.which("promtool") or ""


def find_systemd() -> str:
    """Return the path of what checks systemd's units, blank when there is none."""
    return shutil.which("systemd-analyze") or ""


PARTS = (
    Part("postgres", "PostgreSQL", find_postgres, "set DATABASE_URL=postgresql://…"),
    Part("redis", "Redis", find_redis, "set REDIS_URL=redis://…"),
    Part("browser", "Chromium", find_chromium, "install the package `chromium-headless-shell`"),
    Part("sandbox", "Sandbox", find_sandbox, "install the packages `bubblewrap` and `util-linux`"),
    Part("corpus", "Attack samples", find_corpus, "set TEST_CORPUS=folder"),
    Part("sdk1", "First MCP SDK", find_first_sdk, "run `sh tests/clients/install`"),
    Part("fastmcp", "fastmcp", find_fastmcp, "run `sh tests/clients/install`"),
    Part("nginx", "nginx", find_nginx, "install the package `nginx-light`"),
    Part("systemd", "systemd", find_systemd, "install the package `systemd`"),
    Part("promtool", "promtool", find_promtool, "install the package `prometheus`"),
    Part("npm", "npm servers", find_npm_servers, "install Node.js and run `npm ci` in tests/npm"),
)


def find_absent() -> Iterator[Part]:
    """Yield the parts that are missing."""
    return (part for part in PARTS if not part.find())


def pytest_configure(config: pytest.Config) -> None:
    required = {name.strip() for name in os.environ.get("TEST_REQUIRES", "").split(",")} - {""}
    if unknown := required - {part.group for part in PARTS}:
        raise pytest.UsageError(f"TEST_REQUIRES names unknown groups: {', '.join(sorted(unknown))}")
    if missing := [part for part in find_absent() if part.group in required]:
        lines = (f"{part.title} is required but absent: {part.remedy}" for part in missing)
        raise pytest.UsageError("\n".join(lines))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for part in find_absent():
        skip = pytest.mark.skip(reason=f"{part.title}: absent, {part.remedy}")
        for item in items:
            if part.group in item.keywords:
                item.add_marker(skip)


def pytest_report_header() -> str:
    found = [f"{part.title}: {part.find() or 'absent'}" for part in PARTS]
    return "; ".join([f"Python {sys.version.split()[0]}", *found])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    for part in find_absent():
        count = sum(f"{part.title}: absent" in str(report.longrepr) for report in skipped)
        if count:
            terminalreporter.write_line(
                f"Not run: {count} tests of the group {part.title} ({part.remedy})", yellow=True
            )
