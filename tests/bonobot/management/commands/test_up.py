"""`bonobot up` as a person runs it: real processes in their own folder."""

import errno
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_django
from django.db import connection

from bonobot.accounts.models import Organization, User
from bonobot.core.problems import ServiceUnavailable
from bonobot.management.commands import up
from bonobot.processes import programs
from bonobot.processes.process_status import read_statuses
from bonobot.processes.supervisor import ProcessSpec, ProcessSupervisor, RestartPolicy
from tests import factories
from tests.database import copy_template
from tests.processes import Process, build_environment, find_unused_port, is_healthy, start_process
from tests.wait import eventually

pytestmark = pytest.mark.worker
START_TIMEOUT_S = 90
# The title of each process, or a word in its command line before it has one.
PROGRAMS = {"web": "bonobot web", "worker": "bonobot worker"}


def answers_within(port: int, timeout_s: float) -> bool:
    """Return whether a new connection gets an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=timeout_s):
            return True
    except TimeoutError:
        return False


class Up:
    """A `bonobot up` with its own data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = find_unused_port()
        self.process: Process | None = None

    def environment(self) -> dict[str, str]:
        return build_environment(
            {"BONOBOT_VAR": str(self.folder / "var"), "DATABASE_URL": "", "REDIS_URL": ""}
        )

    def start_process(self, *options: str) -> Process:
        command = (sys.executable, "-m", "bonobot", "up", "--port", str(self.port), *options)
        self.process = start_process("up", command, folder=self.folder, env=self.environment())
        return self.process

    def start_and_wait(self, *options: str) -> Process:
        process = self.start_process(*options)
        eventually(
            lambda: process.require() and "Ctrl-C stops" in process.log(), within=START_TIMEOUT_S
        )
        return process

    def start_until_loading(self) -> tuple[Process, dict[str, int]]:
        """Start it; return the process and the IDs of its three children, which are about to
        load."""
        process = self.start_process()

        def programs() -> dict[str, int]:
            process.require()
            commands = {pid: command(pid) for pid in list_children(process.pid)}
            return {
                name: pid
                for pid, text in commands.items()
                for name, word in PROGRAMS.items()
                if word in text
            }

        eventually(lambda: programs().keys() == PROGRAMS.keys(), within=START_TIMEOUT_S)
        return process, programs()

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as response:
            return bytes(response.read())


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Up]:
    """A `bonobot up` that is stopped after the test."""
    instance = Up(tmp_path)
    yield instance
    if instance.process is not None:
        pids = list_children(instance.process.pid)
        instance.process.kill()
        eventually(lambda: not any(map(is_running, pids)), what="the end of all children")


@pytest.fixture(scope="module")
def prepared_folder(
    tmp_path_factory: pytest.TempPathFactory,
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
) -> Path:
    """A data folder, to be copied, whose database has tables and an organization."""
    instance = Up(tmp_path_factory.mktemp("begun"))
    database = instance.folder / "var" / "bonobot.sqlite3"
    if connection.vendor == "sqlite":
        database.parent.mkdir(mode=0o700)
        copy_template(database)
    else:
        migrate = (sys.executable, "-m", "bonobot", "migrate", "--verbosity", "0", "--skip-checks")
        subprocess.run(migrate, check=True, env=instance.environment(), timeout=START_TIMEOUT_S)
    with closing(sqlite3.connect(database)) as link, link:
        link.execute(
            "INSERT INTO tenancy_organization (id, name, slug, created_at, four_eyes)"
            " VALUES (?, 'Acme', 'acme', datetime(), false)",
            (uuid4().hex,),
        )
    return database.parent


@pytest.fixture
def prepared_runner(runner: Up, prepared_folder: Path) -> Up:
    """A `bonobot up` with an existing database."""
    shutil.copytree(prepared_folder, runner.folder / "var")
    return runner


def list_children(pid: int) -> list[int]:
    result = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, check=False, text=True
    )
    return [int(line) for line in result.stdout.split()]


def command(pid: int) -> str:
    """Return the command line of a process, blank if it has ended."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return ""
    return line.replace(b"\0", b" ").decode().strip()


def is_running(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False


def test_up_starts_all_processes_and_ctrl_c_stops_them(prepared_runner: Up) -> None:
    process = prepared_runner.start_and_wait()
    pids = list_children(process.pid)
    assert len(pids) == 2
    assert is_healthy(prepared_runner.port)
    assert b"csrfmiddlewaretoken" in prepared_runner.get("/admin/login/")
    assert prepared_runner.get("/static/unfold/css/styles.css")
    eventually(lambda: re.search(r"^worker │ .*ready", process.log(), re.MULTILINE))
    is_active = r"^worker │ .*This scheduler is active"
    eventually(lambda: re.search(is_active, process.log(), re.MULTILINE))
    # There is an organization already: no demo is created and no password is shown.
    assert "password" not in process.log()
    assert "Creating a demo" not in process.log()
    assert "superuser privileges" not in process.log()

    os.kill(process.pid, signal.SIGINT)
    assert process.popen.wait(40) == 0
    assert not any(map(is_running, pids))
    assert "Stopped." in process.log()
    assert all(
        re.match(r"(web|worker|bonobot) *│ |  |$|Applying|Stopped", line)
        for line in process.log().splitlines()
    ), process.log()
    assert "Traceback" not in process.log()
    assert {path.name for path in prepared_runner.folder.iterdir()} == {"up.log", "var"}
    keys = prepared_runner.folder / "var" / "keys"
    assert {path.stat().st_mode & 0o777 for path in keys.iterdir()} == {0o600}


@pytest.mark.whole("postgres")
def test_a_process_that_dies_is_restarted_and_reported(prepared_runner: Up) -> None:
    process, pids = prepared_runner.start_until_loading()
    os.kill(pids["worker"], signal.SIGKILL)
    eventually(lambda: "`worker` ended (killed by SIGKILL). It is restarted" in process.log())
    statuses = read_statuses(prepared_runner.folder / "var")
    assert [status.name for status in statuses] == ["web", "worker"]
    assert statuses[1].last_end == "killed by SIGKILL"
    eventually(lambda: len(list_children(process.pid)) == 2, what="a new worker")
    current_pids = list_children(process.pid)
    assert pids["web"] in current_pids
    os.kill(process.pid, signal.SIGINT)
    process.popen.wait(40)
    assert not any(map(is_running, current_pids))
    assert read_statuses(prepared_runner.folder / "var") == []


@pytest.mark.whole("postgres")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux shares the port")
def test_two_web_processes_share_the_port_and_one_serves_alone(prepared_runner: Up) -> None:
    process = prepared_runner.start_and_wait("--web", "2", "--no-worker")
    assert "Ctrl-C stops web1 and web2" in process.log()
    log = process.log
    eventually(lambda: log().count("Application startup complete") == 2, within=START_TIMEOUT_S)
    web1, web2 = list_children(process.pid)
    assert [command(pid) for pid in (web1, web2)] == ["bonobot web1", "bonobot web2"]
    os.kill(web1, signal.SIGSTOP)  # a stopped process can't answer, so that the other one does
    try:
        answers = [answers_within(prepared_runner.port, 0.5) for _ in range(12)]
    finally:
        os.kill(web1, signal.SIGCONT)
    assert {True, False} == set(answers), "the kernel gives connections to both"
    os.kill(web1, signal.SIGKILL)
    eventually(lambda: "`web1` ended (killed by SIGKILL). It is restarted" in process.log())
    eventually(lambda: log().count("Application startup complete") == 3, within=START_TIMEOUT_S)
    statuses = read_statuses(prepared_runner.folder / "var")
    assert [(status.name, status.restarts) for status in statuses] == [("web1", 1), ("web2", 0)]
    assert all(prepared_runner.get("/healthz") for _ in range(12))
    os.kill(process.pid, signal.SIGINT)
    assert process.popen.wait(40) == 0
    assert "Traceback" not in process.log()


def test_a_web_process_that_ends_before_it_is_ready_is_a_problem() -> None:
    supervisor = ProcessSupervisor(
        (
            ProcessSpec("worker", (sys.executable, "-c", "import time; time.sleep(60)")),
            ProcessSpec("web", (sys.executable, "-c", "raise SystemExit(3)")),
        ),
        environment=dict(os.environ),
        write_line=lambda line: None,
    )
    with supervisor:
        problem = up.Command().wait_until_ready(supervisor, "127.0.0.1", find_unused_port())
    assert problem == "`web` ended (exit status 3)"


def test_up_ends_when_all_processes_were_given_up() -> None:
    supervisor = ProcessSupervisor(
        (
            ProcessSpec("web", (sys.executable, "-c", "raise SystemExit(3)")),
            ProcessSpec("beat", (sys.executable, "-c", "raise SystemExit(3)")),
        ),
        environment=dict(os.environ),
        write_line=lambda line: None,
        restarts=RestartPolicy(first_delay_s=0.01, max_restarts=1),
    )
    with supervisor:
        assert up.watch_processes(supervisor) == "All processes ended too often"


@pytest.mark.whole("postgres")
def test_the_processes_die_when_up_is_killed(prepared_runner: Up) -> None:
    process, pids = prepared_runner.start_until_loading()
    os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: not any(map(is_running, pids.values())))


@pytest.mark.parametrize("text", ["0", "-1", "65", "two", "", "1.5", "²"])
def test_a_wrong_number_of_web_processes_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="choose one from 1 to 64"):
        up.parse_web_count(text)


def test_several_web_processes_are_refused_where_the_port_is_not_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert up.parse_web_count("1") == 1
    with pytest.raises(ArgumentTypeError, match="only Linux"):
        up.parse_web_count("2")


def test_a_busy_port_is_refused_before_anything_starts(runner: Up) -> None:
    with socket.create_server(("127.0.0.1", runner.port)):
        process = runner.start_process()
        assert process.popen.wait(30) == 1
    assert f"Port {runner.port} on 127.0.0.1 is in use" in process.log()
    assert "port_in_use (--port)" in process.log()
    assert "--port N" in process.log()
    assert not (runner.folder / "var" / "bonobot.sqlite3").exists()


def test_an_unavailable_database_is_reported_before_anything_starts(runner: Up) -> None:
    variables = runner.environment() | {
        "DATABASE_URL": f"postgresql://nobody@127.0.0.1:{runner.port}/none"
    }
    command = (sys.executable, "-m", "bonobot", "up", "--port", str(runner.port))
    process = start_process("up", command, folder=runner.folder, env=variables)
    assert process.popen.wait(60) == 1
    assert "database_unavailable: " in process.log()
    assert "Traceback" not in process.log()


@pytest.mark.django_db
def test_without_an_account_up_prints_how_to_begin() -> None:
    link = up.describe_missing_account("http://127.0.0.1:8000")["sign up"]
    assert link.startswith("http://127.0.0.1:8000/admin/account/first/")
    User.objects.create_superuser("first")
    assert up.describe_missing_account("http://127.0.0.1:8000") == {}


@pytest.mark.django_db
def test_the_demo_is_created_only_without_an_organization() -> None:
    factories.create_organization()
    assert up.Command().create_demo_organization() == {}
    assert Organization.objects.count() == 1


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_of_another_host_is_refused(host: str) -> None:
    with pytest.raises(ServiceUnavailable) as raised:
        up.require_free_port(host, 8000)
    assert (raised.value.code, raised.value.field) == ("bad_host", "--host")
    assert "127.0.0.1" in raised.value.remedy


def test_a_privileged_port_is_refused() -> None:
    error = up.build_listen_error("127.0.0.1", 80, PermissionError(errno.EACCES, "denied"))
    assert error.code == "port_forbidden"


@pytest.mark.parametrize("port", ["0", "-1", "70000", "http", "\uff18\uff10"])
def test_an_invalid_port_is_a_usage_error(port: str) -> None:
    with pytest.raises(ArgumentTypeError, match="from 1 to 65535"):
        programs.parse_port(port)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9000"),
        ("0.0.0.0", "http://127.0.0.1:9000"),  # noqa: S104 - what a person may write
        ("::", "http://[::1]:9000"),
        ("bonobot.local", "http://bonobot.local:9000"),
    ],
)
def test_the_printed_url_can_be_opened_on_this_host(host: str, url: str) -> None:
    assert programs.build_browser_url(host, 9000) == url


def test_a_configured_url_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BONOBOT_URL", "https://bonobot.example.com")
    assert (
        programs.build_local_environment("127.0.0.1", 9000)["BONOBOT_URL"]
        == "https://bonobot.example.com"
    )
    monkeypatch.delenv("BONOBOT_URL")
    assert (
        programs.build_local_environment("127.0.0.1", 9000)["BONOBOT_URL"]
        == "http://127.0.0.1:9000"
    )


@pytest.mark.parametrize(
    ("options", "url"),
    [
        (["--port", "9000"], "http://127.0.0.1:9000"),
        (["--no-demo", "--web", "2", "--host=::1"], "http://[::1]:8000"),
        (["--port", "http"], None),  # the command reports it
        (["--port"], None),
    ],
)
def test_processes_are_forked_only_if_settings_were_read_with_their_environment(
    monkeypatch: pytest.MonkeyPatch, options: list[str], url: str | None
) -> None:
    for name in programs.SETTINGS_VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    environment = programs.build_local_environment("127.0.0.1", 9000)
    assert not programs.has_settings_variables(environment)
    programs.set_settings_variables(options)
    assert os.environ.get("BONOBOT_URL") == url
    assert programs.has_settings_variables(environment) == (url == "http://127.0.0.1:9000")
