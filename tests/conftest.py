"""Fixtures for all tests: real servers, a real worker, a real web process.

Processes exist in two scopes:

- `worker`, `live_web`, `page` belong to one test, which works on committed rows
  (`transactional_db`). Use them when the test kills, stops or configures a process.
- `module_worker`, `module_web`, `module_page` start once for all tests of a module, and so do their
  rows (`module_rows`): the tables are emptied after the module's last test, not between its tests.
  Each test creates its own organization. Such a module uses no other database fixture or mark:
  emptying the tables would delete rows that the processes lease and cache.
"""

import gc
import importlib
import os
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytest_django
from django.conf import settings
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.db import connection, connections
from django.dispatch import Signal
from django.template import Context, RequestContext, Template
from django.test import TransactionTestCase
from django.test import client as test_client
from django.utils import translation
from hypothesis import HealthCheck
from hypothesis import settings as settings_of_hypothesis
from hypothesis.internal.conjecture import providers
from playwright.sync_api import Browser, Page

from tests import background_work, database, database_flush, processes
from tests.browser import close_browser, open_browser, open_context, open_page, save_page
from tests.parts import NODE_SERVERS
from tests.processes import Process, Web
from tests.selection import WHOLE

# A run tests the same examples each time, the whole suite more of them; `make fuzz` searches for
# new ones. There is no deadline for an example, since its duration depends on the machine.
COMMON = settings_of_hypothesis(deadline=None, suppress_health_check=[HealthCheck.too_slow])
EXAMPLES = 50 if WHOLE else 20
settings_of_hypothesis.register_profile("suite", COMMON, max_examples=EXAMPLES, derandomize=True)
settings_of_hypothesis.register_profile("search", COMMON, max_examples=1_000)
if os.environ.get("TEST_FUZZING") == "whole":
    settings_of_hypothesis.load_profile("search")
else:
    settings_of_hypothesis.load_profile("suite")
    # Hypothesis would also try constants of all modules that the process has imported: other tests
    # would decide which, and reading them takes seconds in each process.
    providers._get_local_constants = lambda: providers._local_constants

FAILED = pytest.StashKey[bool]()
PROCESSES = pytest.StashKey[list[Process]]()
KEPT_LOG = 20_000  # characters of a process's log that a failure shows
# Fixtures of pytest-django for marks and variables that no test has, and for the cache of an absent
# app. They are set up for every test, which takes a quarter of the time of a small one.
UNUSED = frozenset(
    {
        "_django_clear_site_cache",
        "_django_isolate_apps",
        "_django_set_urlconf",
        "_fail_for_invalid_template_variable",
        "_template_string_if_invalid_marker",
    }
)


class QuickHasher(PBKDF2PasswordHasher):
    """The default hasher with one iteration; other processes can verify its hashes."""

    iterations = 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Leave out fixtures of pytest-django that no test here needs: see `UNUSED`."""
    names = session._fixturemanager._node_autousenames[session]
    names[:] = [name for name in names if name not in UNUSED]


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Make the product quicker for all tests of a process, which closes its browser at the end.

    A fixture for the whole session would be collected and looked up for each of the tests.
    """
    if session.config.getoption("numprocesses", None):
        return (yield)  # others run the tests
    with pytest.MonkeyPatch.context() as patch:
        hashers = [f"{__name__}.QuickHasher", *settings.PASSWORD_HASHERS]
        patch.setattr(settings, "PASSWORD_HASHERS", hashers)
        # It is asynchronous only: with it, each request of a test client starts a thread and an
        # event loop, which takes a tenth of its time.
        middleware = [name for name in settings.MIDDLEWARE if "static_files" not in name]
        patch.setattr(settings, "MIDDLEWARE", middleware)
        _empty_tables_quickly(patch)
        _keep_contexts_of_pages(patch)
        _share_tls_context(patch)
        try:
            return (yield)
        finally:
            close_browser()


def _empty_tables_quickly(patch: pytest.MonkeyPatch) -> None:
    """Empty tables with DELETE, except for rows of migrations: see `tests.database_flush`.

    SQLite's connection stays open: to open it again takes longer than to empty the tables.
    """
    patch.setattr(
        TransactionTestCase, "_fixture_teardown", lambda case: database_flush.empty_tables()
    )
    if connection.vendor == "sqlite":
        patch.setattr(TransactionTestCase, "_should_reload_connections", lambda case: False)


def _keep_contexts_of_pages(patch: pytest.MonkeyPatch) -> None:
    """Keep Django's test client from copying the contexts of widgets and included templates.

    `response.context` is that of the page; copying all others takes a tenth of a page's time.
    """
    store = test_client.store_rendered_templates  # type: ignore[attr-defined]

    def keep_page(
        storage: dict[str, Any],
        signal: Signal,
        sender: Template,
        template: Template,
        context: Context,
        **extra: Any,
    ) -> None:
        if isinstance(context, RequestContext) and context.template is template:
            store(storage, signal, sender, template, context, **extra)

    patch.setattr(test_client, "store_rendered_templates", keep_page)


def _share_tls_context(patch: pytest.MonkeyPatch) -> None:
    """Read the certificate authorities once: clients of servers on the loopback use none.

    `httpx.get` and the like read all of them for each request, which takes longer than the request.
    """
    for transports in ("httpx._transports.default", "httpx2._transports.default"):
        module = importlib.import_module(transports)
        patch.setattr(module, "create_ssl_context", cache(module.create_ssl_context))


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[None]:
    """Replace pytest-django's fixture: copy a migrated database instead of migrating one."""
    with django_db_blocker.unblock():
        database.create_database()
    yield
    with django_db_blocker.unblock():
        connections.close_all()
        database.drop_database()


@pytest.fixture(scope="module", autouse=True)
def _no_work_after_a_module(django_db_blocker: pytest_django.DjangoDbBlocker) -> Iterator[None]:
    """Stop what a module's tests left running, and delete what that wrote while it ended.

    The language of its last request doesn't stay active either.
    """
    yield
    translation.deactivate()
    with django_db_blocker.unblock():
        if background_work.stop_background_work() and database.is_in_use():
            database_flush.empty_tables()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio, the loop of the product."""
    return "asyncio"


@pytest.fixture
def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    return processes.find_unused_port()


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
    with processes.serve("list_changed_server.py") as url:
        yield url


def _collect_processes(node: pytest.Collector | pytest.Item) -> Iterator[list[Process]]:
    """Yield a list for the processes of a node; reports of failures include their logs.

    They are killed, which saves the four seconds of a worker's shutdown; normal shutdown has its
    own tests.
    """
    started: list[Process] = []
    node.stash[PROCESSES] = started
    yield started
    for process in started:
        process.kill()


@pytest.fixture
def running(request: pytest.FixtureRequest) -> Iterator[list[Process]]:
    """Collect the processes of a test."""
    yield from _collect_processes(request.node)


@pytest.fixture(scope="module")
def module_running(request: pytest.FixtureRequest) -> Iterator[list[Process]]:
    """Collect the processes that all tests of a module share."""
    yield from _collect_processes(request.node)


@pytest.fixture(scope="module")
def module_rows(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[None]:
    """Let all tests of a module commit rows; empty the tables after the last one."""
    with django_db_blocker.unblock():
        yield
        database_flush.empty_tables()
        connections.close_all()


@pytest.fixture(scope="module")
def module_worker(
    module_rows: None, tmp_path_factory: pytest.TempPathFactory, module_running: list[Process]
) -> Process:
    """Start the Celery worker that all tests of a module share."""
    from bonobot.celery import app

    app.control.purge()  # what other tests queued
    process = processes.start_worker(tmp_path_factory.mktemp("worker"), "worker1")
    module_running.append(process)
    return process


@pytest.fixture(scope="module")
def module_web(
    request: pytest.FixtureRequest,
    module_rows: None,
    tmp_path_factory: pytest.TempPathFactory,
    module_running: list[Process],
) -> Web:
    """Start the uvicorn that all tests of a module share, with the module's `WEB_SETTINGS`."""
    folder = tmp_path_factory.mktemp("web")
    extra = getattr(request.module, "WEB_SETTINGS", None)
    process = processes.start_web(folder, "web1", extra=extra)
    module_running.append(process)
    return process


@pytest.fixture
def start_worker(
    transactional_db: None, tmp_path: Path, running: list[Process]
) -> Callable[..., Process]:
    """Return a function that starts one more Celery worker: `start_worker(BONOBOT_…="…")`."""
    from bonobot.celery import app

    app.control.purge()  # what other tests queued

    def start(**extra: str) -> Process:
        name = f"worker{sum(process.name.startswith('worker') for process in running) + 1}"
        process = processes.start_worker(tmp_path, name, extra)
        running.append(process)
        return process

    return start


@pytest.fixture
def worker(start_worker: Callable[..., Process]) -> Process:
    """Start a Celery worker on the test database, keys and broker; it already answers pings."""
    return start_worker()


@pytest.fixture
def start_web(transactional_db: None, tmp_path: Path, running: list[Process]) -> Callable[..., Web]:
    """Return a function that starts one more uvicorn: `start_web(BONOBOT_…="…")`."""

    def start(**extra: str) -> Web:
        name = f"web{sum(process.name.startswith('web') for process in running) + 1}"
        process = processes.start_web(tmp_path, name, extra=extra)
        running.append(process)
        return process

    return start


@pytest.fixture
def live_web(start_web: Callable[..., Web]) -> Web:
    """Start uvicorn on the test database and keys; /healthz already answers."""
    return start_web()


@pytest.fixture
def page(
    live_web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Page]:
    """Open a page of `live_web` in Chromium; mark such tests `browser`.

    Requests to other hosts and script errors fail the test; its last screen is in `tmp_path`.
    """
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    with open_page(live_web.url) as opened:
        yield opened
        if request.node.stash.get(FAILED, False):
            save_page(opened, tmp_path)


@pytest.fixture(scope="module")
def module_browser() -> Iterator[Browser]:
    """Use Chromium in all tests of a module: no async test can run beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        with open_browser() as browser:
            yield browser


@pytest.fixture
def module_page(
    module_web: Web, module_browser: Browser, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Page]:
    """Open a page of `module_web` with its own cookies; mark such tests `browser`."""
    with open_context(module_browser, module_web.url) as opened:
        yield opened
        if request.node.stash.get(FAILED, False):
            save_page(opened, tmp_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    # A finalizer that logs a traceback here would break the parser of 3.11 (gh-106905).
    gc.disable()
    try:
        report = yield
    finally:
        gc.enable()
    if report.failed:
        item.stash[FAILED] = True
        shared = (
            module.stash.get(PROCESSES, []) if (module := item.getparent(pytest.Module)) else []
        )
        for process in (*item.stash.get(PROCESSES, []), *shared):
            if process.log_file.exists():
                report.sections.append((f"log of {process.name}", process.log()[-KEPT_LOG:]))
    return report
