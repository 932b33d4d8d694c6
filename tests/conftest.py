"""Fixtures for everybody: real servers, a real worker, a real web process.

A test that uses `worker` or `live_web` works on committed rows (it gets `transactional_db`), and
the processes live as long as the test: they cache content types and lease rows, which the clean-up
between tests takes away from under them.
"""

import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import pytest_django
from django.conf import settings
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.core.management.commands import flush
from django.db import connection, connections
from django.db.backends.base.operations import BaseDatabaseOperations
from hypothesis import HealthCheck
from hypothesis import settings as settings_of_hypothesis
from playwright.sync_api import Page
from servestatic.middleware import ServeStaticMiddleware

from bonobot.ledger import writer
from bonobot.lib import runtime
from tests import flushing, processes
from tests.browser import keep, open_page
from tests.parts import NODE_SERVERS
from tests.processes import Process, Web

# How long an example takes says something about the machine, nothing about the property.
settings_of_hypothesis.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings_of_hypothesis.load_profile("suite")

# Few tests, much work: these begin first (with xdist's `--no-loadscope-reorder`, which the Makefile
# gives), so that at the end of a run no process waits for another.
LONG = (
    "end_to_end/",
    "docs/",
    "upgrades/",
    "conformance/",
    "bonobot/management/test_up.py",
    "bonobot/test_admin.py",
    "bonobot/test_api_clients.py",
    "bonobot/test_api_fuzzed.py",
    "bonobot/test_canaries.py",
    "bonobot/test_scale.py",
    "bonobot/test_translations.py",
    "bonobot/test_wheel.py",
)
FAILED = pytest.StashKey[bool]()
PROCESSES = pytest.StashKey[list[Process]]()
KEPT_LOG = 20_000  # characters of a process's log that a failure shows


class QuickHasher(PBKDF2PasswordHasher):
    """The default hasher with one iteration: what it writes, every other process can check."""

    iterations = 1


@pytest.fixture(scope="session", autouse=True)
def _quick_passwords() -> Iterator[None]:
    before = settings.PASSWORD_HASHERS
    settings.PASSWORD_HASHERS = [f"{__name__}.QuickHasher", *before]
    yield
    settings.PASSWORD_HASHERS = before


@pytest.fixture(scope="session")
def django_db_setup(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[None]:
    """Let go of the test database before it is dropped: PostgreSQL keeps one that is in use."""
    yield
    with django_db_blocker.unblock():
        runtime.close()
        writer.close()
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            connection.close_pool()  # type: ignore[attr-defined]  # PostgreSQL's only
        connections.close_all()


@pytest.fixture(scope="session", autouse=True)
def _quick_flush() -> Iterator[None]:
    """Empty tables by DELETE, and keep what `migrate` puts into them: see `tests.flushing`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flush, "sql_flush", flushing.statements)
        patch.setattr(BaseDatabaseOperations, "execute_sql_flush", flushing.execute)
        patch.setattr(flush, "emit_post_migrate_signal", flushing.restore)
        yield


@pytest.fixture(scope="session", autouse=True)
def _static_files_found_once() -> Iterator[None]:
    """Look for static files once: each test client loads its middleware anew, which looks again."""
    look = ServeStaticMiddleware.add_files_from_finders
    found: dict[str, object] = {}

    def add(middleware: ServeStaticMiddleware) -> None:
        if not found:
            look(middleware)
            found.update(middleware.files)
        middleware.files.update(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServeStaticMiddleware, "add_files_from_finders", add)
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio, the loop of the product."""
    return "asyncio"


@pytest.fixture
def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    return processes.unused_port()


@pytest.fixture(scope="session")
def pypi_server() -> Callable[[str], str]:
    """Return a function from a console script's name to its path in this environment."""

    def find(name: str) -> str:
        path = Path(sys.executable).with_name(name)
        assert path.is_file(), (
            f"`{name}` isn't installed beside {sys.executable}: run `make install`"
        )
        return str(path)

    return find


@pytest.fixture(scope="session")
def node_server() -> Callable[[str], str]:
    """Return a function from an npm server's command to its path; mark such tests `npm`."""

    def find(name: str) -> str:
        path = NODE_SERVERS / name
        assert path.exists(), f"`{name}` isn't installed: run `npm ci` in {NODE_SERVERS.parents[1]}"
        return str(path)

    return find


@pytest.fixture(scope="session")
def changing_url() -> Iterator[str]:
    """Run the SDK's server whose tools change, over HTTP, for the whole session."""
    with processes.served("changing.py") as url:
        yield url


@pytest.fixture
def running(request: pytest.FixtureRequest) -> Iterator[list[Process]]:
    """Collect the processes of a test: their logs go to a failure's report, then they end.

    They are killed, which saves a worker's four seconds of shutting down; how processes stop in an
    orderly way has tests of its own.
    """
    started: list[Process] = []
    request.node.stash[PROCESSES] = started
    yield started
    for process in started:
        process.kill()


@pytest.fixture
def start_worker(
    transactional_db: None, tmp_path: Path, running: list[Process]
) -> Callable[..., Process]:
    """Return a function that starts one more Celery worker: `start_worker(BONOBOT_…="…")`."""
    from bonobot.celery import app

    app.control.purge()  # what other tests queued

    def begin(**extra: str) -> Process:
        name = f"worker{sum(process.name.startswith('worker') for process in running) + 1}"
        process = processes.start_worker(tmp_path, name, extra)
        running.append(process)
        return process

    return begin


@pytest.fixture
def worker(start_worker: Callable[..., Process]) -> Process:
    """Start a Celery worker on the test database, keys and broker; it answers pings already."""
    return start_worker()


@pytest.fixture
def start_web(transactional_db: None, tmp_path: Path, running: list[Process]) -> Callable[..., Web]:
    """Return a function that starts one more uvicorn: `start_web(BONOBOT_…="…")`."""

    def begin(**extra: str) -> Web:
        name = f"web{sum(process.name.startswith('web') for process in running) + 1}"
        process = processes.start_web(tmp_path, name, port=processes.unused_port(), extra=extra)
        running.append(process)
        return process

    return begin


@pytest.fixture
def live_web(start_web: Callable[..., Web]) -> Web:
    """Start uvicorn on the test database and keys; /healthz answers already."""
    return start_web()


@pytest.fixture
def page(
    live_web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Page]:
    """Open a page of `live_web` in Chromium; mark such tests `browser`.

    Asking another host or a failing script fails the test; what it saw last is in its `tmp_path`.
    """
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    with open_page(live_web.url) as opened:
        yield opened
        if request.node.stash.get(FAILED, False):
            keep(opened, tmp_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let what takes long begin first; all else keeps its order."""
    folder = Path(__file__).parent
    items.sort(key=lambda item: not str(item.path.relative_to(folder)).startswith(LONG))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
        for process in item.stash.get(PROCESSES, []):
            if process.log_file.exists():
                report.sections.append((f"log of {process.name}", process.log()[-KEPT_LOG:]))
    return report
