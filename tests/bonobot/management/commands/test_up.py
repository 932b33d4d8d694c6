"""`bonobot up` as a person uses it: real processes in a folder of their own."""

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
from tests.processes import Process, environment, healthy, start, unused_port
from tests.wait import eventually

pytestmark = pytest.mark.worker
FIRST_ANSWER_S = 90
# A word of each program's command line.
PROGRAMS = {"web": " uvicorn ", "worker": " worker ", "beat": " beat "}


class Up:
    """A running `bonobot up` in one folder for data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = unused_port()
        self.process: Process | None = None

    def environment(self) -> dict[str, str]:
        return environment(
            {"BONOBOT_VAR": str(self.folder / "var"), "DATABASE_URL": "", "REDIS_URL": ""}
        )

    def begin(self, *options: str) -> Process:
        command = (sys.executable, "-m", "bonobot", "up", "--port", str(self.port), *options)
        self.process = start("up", command, folder=self.folder, env=self.environment())
        return self.process

    def ready(self, *options: str) -> Process:
        process = self.begin(*options)
        eventually(
            lambda: process.require() and "Ctrl-C stops" in process.log(), within=FIRST_ANSWER_S
        )
        return process

    def loading(self) -> tuple[Process, dict[str, int]]:
        """Return the process and the ids of its three programs, which are about to load."""
        process = self.begin()

        def programs() -> dict[str, int]:
            process.require()
            commands = {pid: command(pid) for pid in children(process.pid)}
            return {
                name: pid
                for pid, text in commands.items()
                for name, word in PROGRAMS.items()
                if word in text
            }

        eventually(lambda: programs().keys() == PROGRAMS.keys(), within=FIRST_ANSWER_S)
        return process, programs()

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as response:
            return bytes(response.read())


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Up]:
    """Give a `bonobot up` that ends with the test."""
    made = Up(tmp_path)
    yield made
    if made.process is not None:
        pids = children(made.process.pid)
        made.process.kill()
        eventually(lambda: not any(map(exists, pids)), what="the end of all children")


@pytest.fixture(scope="module")
def begun(
    tmp_path_factory: pytest.TempPathFactory,
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
) -> Path:
    """Return a folder for data whose database has its tables and an organization, to be copied."""
    made = Up(tmp_path_factory.mktemp("begun"))
    database = made.folder / "var" / "bonobot.sqlite3"
    if connection.vendor == "sqlite":
        database.parent.mkdir(mode=0o700)
        copy_template(database)
    else:
        migrate = (sys.executable, "-m", "bonobot", "migrate", "--verbosity", "0", "--skip-checks")
        subprocess.run(migrate, check=True, env=made.environment(), timeout=FIRST_ANSWER_S)
    with closing(sqlite3.connect(database)) as link, link:
        link.execute(
            "INSERT INTO tenancy_organization (id, name, slug, created_at, four_eyes)"
            " VALUES (?, 'Acme', 'acme', datetime(), false)",
            (uuid4().hex,),
        )
    return database.parent


@pytest.fixture
def another(one: Up, begun: Path) -> Up:
    """Give a `bonobot up` that finds a database."""
    shutil.copytree(begun, one.folder / "var")
    return one


def children(pid: int) -> list[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, check=False, text=True
    )
    return [int(line) for line in found.stdout.split()]


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def exists(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False


def test_up_starts_all_processes_and_ctrl_c_stops_them(another: Up) -> None:
    process = another.ready()
    pids = children(process.pid)
    assert len(pids) == 3
    assert healthy(another.port)
    assert b"csrfmiddlewaretoken" in another.get("/admin/login/")
    assert another.get("/static/unfold/css/styles.css")
    eventually(lambda: re.search(r"^worker │ .*ready", process.log(), re.MULTILINE))
    # There is an organization already: no demo is made, and no password shown.
    assert "password" not in process.log()
    assert "Creating a demo" not in process.log()

    os.kill(process.pid, signal.SIGINT)
    assert process.popen.wait(40) == 0
    assert not any(map(exists, pids))
    assert "Stopped." in process.log()
    assert all(
        re.match(r"(web|worker|beat|bonobot) *│ |  |$|Applying|Stopped", line)
        for line in process.log().splitlines()
    ), process.log()
    assert "Traceback" not in process.log()
    assert {path.name for path in another.folder.iterdir()} == {"up.log", "var"}
    keys = another.folder / "var" / "keys"
    assert {path.stat().st_mode & 0o777 for path in keys.iterdir()} == {0o600}


def test_a_worker_that_dies_is_started_again_and_reported(another: Up) -> None:
    process, pids = another.loading()
    os.kill(pids["beat"], signal.SIGKILL)
    eventually(lambda: "`beat` ended (killed by SIGKILL). It is restarted" in process.log())
    statuses = read_statuses(another.folder / "var")
    assert [status.name for status in statuses] == ["web", "worker", "beat"]
    assert statuses[2].last_end == "killed by SIGKILL"
    eventually(lambda: len(children(process.pid)) == 3, what="a new scheduler")
    everyone = children(process.pid)
    assert {pids["web"], pids["worker"]} < set(everyone)
    os.kill(process.pid, signal.SIGINT)
    process.popen.wait(40)
    assert not any(map(exists, everyone))
    assert read_statuses(another.folder / "var") == []


def test_a_web_process_that_ends_before_it_is_ready_ends_the_others(another: Up) -> None:
    process, pids = another.loading()
    os.kill(pids["web"], signal.SIGKILL)
    assert process.popen.wait(40) == 1
    assert "`web` ended (killed by SIGKILL). The other processes were stopped." in process.log()
    assert not any(map(exists, pids.values()))


def test_it_ends_when_all_processes_were_given_up() -> None:
    crew = ProcessSupervisor(
        (
            ProcessSpec("web", (sys.executable, "-c", "raise SystemExit(3)")),
            ProcessSpec("beat", (sys.executable, "-c", "raise SystemExit(3)")),
        ),
        environment=dict(os.environ),
        write_line=lambda line: None,
        restarts=RestartPolicy(first_delay_s=0.01, max_restarts=1),
    )
    with crew:
        assert up.watch_processes(crew) == "All processes ended too often"


def test_the_processes_die_when_up_is_killed(another: Up) -> None:
    process, pids = another.loading()
    os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: not any(map(exists, pids.values())))


def test_a_busy_port_is_refused_before_anything_starts(one: Up) -> None:
    with socket.create_server(("127.0.0.1", one.port)):
        process = one.begin()
        assert process.popen.wait(30) == 1
    assert f"Port {one.port} on 127.0.0.1 is in use" in process.log()
    assert "port_in_use (--port)" in process.log()
    assert "--port N" in process.log()
    assert not (one.folder / "var" / "bonobot.sqlite3").exists()


def test_an_unavailable_database_is_reported_before_anything_starts(one: Up) -> None:
    given = one.environment() | {"DATABASE_URL": f"postgresql://nobody@127.0.0.1:{one.port}/none"}
    command = (sys.executable, "-m", "bonobot", "up", "--port", str(one.port))
    process = start("up", command, folder=one.folder, env=given)
    assert process.popen.wait(60) == 1
    assert "database_unavailable: " in process.log()
    assert "Traceback" not in process.log()


@pytest.mark.django_db
def test_without_an_account_up_prints_how_to_begin() -> None:
    assert "createsuperuser" in up.describe_missing_account()["sign in"]
    User.objects.create_superuser("first")
    assert up.describe_missing_account() == {}


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
    refused = up.build_listen_error("127.0.0.1", 80, PermissionError(errno.EACCES, "denied"))
    assert refused.code == "port_forbidden"


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
