import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from pytest_django import Settings

from agents import doctor_checks
from agents.doctor_checks import SettingsFinding
from bonobot.monitoring import database_state, health_endpoints
from bonobot.processes.process_status import ProcessStatus, read_statuses, write_statuses
from mcp_servers.client.child_process import GROUP, NAMESPACE
from mcp_servers.client.sandbox import ServerSandboxUnavailable
from mcp_servers.models import Server
from mcp_servers.models.servers import ServerQuerySet
from mcp_servers.subscriptions import leases
from tests import factories
from tests.processes import Process
from tests.servers.token_issuer import listening


def get_states(inspect: Any) -> dict[str, str]:
    return {finding.name: finding.state for finding in inspect()}


def run_doctor(*arguments: str) -> tuple[str, int]:
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command("doctor", *arguments, stdout=out, stderr=err)
    except SystemExit as raised:
        return out.getvalue(), int(raised.code or 0)
    return out.getvalue(), 0


def test_the_interpreter_and_the_folder_pass_here() -> None:
    assert get_states(doctor_checks.inspect_python) == {"python": "ok"}
    assert get_states(doctor_checks.inspect_data_folder) == {"folder": "ok", "keys": "ok"}


def test_restarted_and_stopped_processes_are_shown(tmp_path: Path, settings: Settings) -> None:
    settings.BONOBOT_VAR = tmp_path
    assert get_states(doctor_checks.inspect_supervised_processes) == {}
    statuses = [
        ProcessStatus("web", "running"),
        ProcessStatus("worker", "running", 2, "killed by SIGKILL"),
        ProcessStatus("beat", "stopped", 5, "exit status 1"),
    ]
    write_statuses(tmp_path, statuses)
    assert read_statuses(tmp_path) == statuses
    worker, beat = doctor_checks.inspect_supervised_processes()
    assert (worker.name, worker.state) == ("worker", "warning")
    assert "restarted 2 times" in worker.detail
    assert (beat.name, beat.state) == ("beat", "failed")
    assert "exit status 1" in beat.detail
    assert beat.fix


def test_an_old_interpreter_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "OLDEST_PYTHON", (4, 0))
    assert get_states(doctor_checks.inspect_python) == {"python": "failed"}


def test_a_folder_that_isnt_writable_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings
) -> None:
    settings.BONOBOT_VAR = tmp_path
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert get_states(doctor_checks.inspect_data_folder)["folder"] == "failed"


def test_a_readable_key_fails_with_the_command_that_fixes_it(
    tmp_path: Path, settings: Settings
) -> None:
    settings.BONOBOT_VAR = tmp_path
    key = tmp_path / "keys" / "field_keys"
    key.parent.mkdir()
    key.touch(0o644)
    finding = list(doctor_checks.inspect_data_folder())[1]
    assert (finding.state, finding.fix) == ("failed", f"Run `chmod 600 {key}`.")


def test_the_database_passes_here(db: None) -> None:
    assert get_states(doctor_checks.inspect_database) == {"database": "ok", "migrations": "ok"}


def test_missing_migrations_fail(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_state, "count_unapplied_migrations", lambda: 2)
    assert get_states(doctor_checks.inspect_database)["migrations"] == "failed"


def test_an_unavailable_database_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error() -> int:
        raise OperationalError("refused")

    monkeypatch.setattr(database_state, "count_unapplied_migrations", raise_error)
    assert get_states(doctor_checks.inspect_database) == {"database": "failed"}


def test_an_unavailable_database_isnt_queried_further(monkeypatch: pytest.MonkeyPatch) -> None:
    inspected: list[str] = []

    def report_failure() -> Iterator[SettingsFinding]:
        yield SettingsFinding("database", "failed", "x", "x")

    def inspect_rows() -> Iterator[SettingsFinding]:
        inspected.append("rows")
        yield SettingsFinding("rows", "ok", "x")

    def raise_error() -> Iterator[SettingsFinding]:
        raise OperationalError
        yield

    monkeypatch.setattr(doctor_checks, "DATABASE_INSPECTIONS", (inspect_rows, raise_error))
    for first in (report_failure, raise_error):
        monkeypatch.setattr(
            doctor_checks, "INSPECTIONS", (first, inspect_rows, doctor_checks.inspect_python)
        )
        assert [finding.name for finding in doctor_checks.run_settings_checks()][-1] == "python"
    assert not inspected


@pytest.mark.postgres
def test_a_refused_database_connection_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    params = connection.get_connection_params()
    monkeypatch.setattr(
        connection, "get_connection_params", lambda: {**params, "dbname": "nowhere-x"}
    )
    assert "nowhere-x" in database_state.explain_database_error(
        OperationalError("couldn't get a connection")
    )


def test_keys_that_decrypt_nothing_fail_with_a_remedy(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert get_states(doctor_checks.inspect_secrets) == {"secrets": "ok"}
    monkeypatch.setattr(health_endpoints, "list_unreadable_fields", lambda: iter(["tokens"]))
    (finding,) = doctor_checks.inspect_secrets()
    assert (finding.state, finding.detail) == ("failed", "encrypted with other keys: tokens")


@pytest.mark.postgres
def test_the_database_servers_clock_and_connections_pass_here(db: None) -> None:
    assert set(get_states(doctor_checks.inspect_clock)) == {"clock", "connections"}
    assert get_states(doctor_checks.inspect_clock)["clock"] == "ok"


@pytest.mark.redis
def test_redis_must_not_evict_keys() -> None:
    assert get_states(doctor_checks.inspect_redis_memory) == {"redis": "ok"}


def test_a_missing_worker_fails() -> None:
    assert get_states(doctor_checks.inspect_broker) == {"broker": "ok", "worker": "failed"}


@pytest.mark.worker
def test_a_running_worker_passes(worker: Process) -> None:
    states = get_states(doctor_checks.inspect_broker)
    assert states == {"broker": "ok", "worker": "ok", "beat": "warning"}


@pytest.mark.parametrize(
    ("uptime", "sweeps", "state"), [(100, 9, "ok"), (5, 0, "warning"), (100, 0, "failed")]
)
def test_the_scheduler_is_detected_by_its_messages(uptime: int, sweeps: int, state: str) -> None:
    idle = {"uptime": 3, "total": {}}
    busy = {"uptime": uptime, "total": {doctor_checks.SWEEP_TASK: sweeps} if sweeps else {}}
    assert doctor_checks.inspect_scheduler([idle, busy]).state == state


def test_servers_without_a_change_listener_are_a_warning(db: None, settings: Settings) -> None:
    assert get_states(doctor_checks.inspect_change_listeners) == {"change notices": "ok"}
    server = factories.create_http_server(factories.create_organization(), "http://127.0.0.1:9/mcp")
    leases.store_change_topics(server, {"tools": {"listChanged": True}})
    [finding] = doctor_checks.inspect_change_listeners()
    assert (finding.state, finding.detail) == ("warning", "not listening to 1 of 1 servers")
    leases.claim_servers(uuid4(), 1)
    assert get_states(doctor_checks.inspect_change_listeners) == {"change notices": "ok"}
    settings.BONOBOT_WATCHED_SERVERS = 0
    assert get_states(doctor_checks.inspect_change_listeners) == {"change notices": "ok"}


def test_the_keys_of_an_external_issuer_are_fetched(transactional_db: None) -> None:
    acme = factories.create_organization()
    with listening() as issuer:
        factories.create_issuer(acme, issuer.url, "Here", allow_private=True)
        factories.create_issuer(acme, "http://127.0.0.1:9", "Gone", allow_private=True)
        states = get_states(doctor_checks.inspect_external_issuers)
    assert states == {"issuer Here": "ok", "issuer Gone": "failed"}


def test_a_missing_launcher_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert set(get_states(doctor_checks.inspect_launchers).values()) == {"warning"}


def test_namespaces_for_stdio_servers_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "choose_containment", lambda: NAMESPACE)
    assert get_states(doctor_checks.inspect_process_isolation) == {"isolation": "ok"}


@pytest.mark.parametrize(
    ("platform", "tool", "fix"),
    [
        ("darwin", None, "on Linux"),
        ("linux", None, "util-linux"),
        ("linux", "/usr/bin/tool", "user namespaces"),
    ],
)
def test_weaker_isolation_is_a_warning_with_a_remedy(
    platform: str, tool: str | None, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_checks, "choose_containment", lambda: GROUP)
    monkeypatch.setattr(shutil, "which", lambda name: tool)
    monkeypatch.setattr("sys.platform", platform)
    [finding] = doctor_checks.inspect_process_isolation()
    assert finding.state == "warning"
    assert fix in finding.fix


@pytest.mark.parametrize(("required", "state"), [(False, "warning"), (True, "failed")])
def test_a_sandbox_that_doesnt_work_fails_if_a_server_needs_it(
    required: bool, state: str, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = ServerSandboxUnavailable(
        "`bwrap` isn't installed", "Install the package `bubblewrap`."
    )
    monkeypatch.setattr(
        doctor_checks,
        "find_sandbox_problem",
        lambda kind, network: problem if kind == "bubblewrap" else None,
    )
    server = factories.create_stdio_server(factories.create_organization())
    if required:
        Server.objects.filter(pk=server.pk).update(sandbox="bubblewrap")
    assert get_states(doctor_checks.inspect_server_sandboxes) == {
        "namespaces": "ok",
        "bubblewrap": state,
    }
    assert "package `bubblewrap`" in list(doctor_checks.inspect_server_sandboxes())[1].fix


def test_the_sandbox_is_checked_without_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(self: object) -> None:
        raise OperationalError("refused")

    monkeypatch.setattr(
        doctor_checks,
        "find_sandbox_problem",
        lambda kind, network: ServerSandboxUnavailable("no", "Install it."),
    )
    monkeypatch.setattr(ServerQuerySet, "enabled", raise_error)
    assert set(get_states(doctor_checks.inspect_server_sandboxes).values()) == {"warning"}


@pytest.mark.parametrize(
    ("machine", "state"), [("x86_64", "ok"), ("aarch64", "ok"), ("ppc64le", "warning")]
)
def test_a_machine_without_a_filter_of_file_modes_is_a_warning(
    machine: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_checks, "fault_of_server_sandbox", lambda: None)
    monkeypatch.setattr("platform.machine", lambda: machine)
    [finding] = doctor_checks.inspect_stdio_sandbox()
    assert finding.state == state
    if state == "warning":
        assert "set-user-ID" in finding.detail
        assert "`nosuid`" in finding.fix


@pytest.mark.parametrize(
    ("organizations", "state", "detail"),
    [
        (("acme",), "warning", "run as this user as long as there is only one organization"),
        (("acme", "others"), "failed", "stdio servers that can't start: 1"),
    ],
)
def test_a_missing_sandbox_fails_with_several_organizations(
    db: None,
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
    organizations: tuple[str, ...],
    state: str,
    detail: str,
) -> None:
    settings.BONOBOT_STDIO_SANDBOX = "sandbox"
    for slug in organizations:
        organization = factories.create_organization(slug)
    factories.create_stdio_server(organization)
    problem = ServerSandboxUnavailable(
        "`bwrap` isn't installed", "Install the package `bubblewrap`."
    )
    monkeypatch.setattr(doctor_checks, "fault_of_server_sandbox", lambda: problem)
    [finding] = doctor_checks.inspect_stdio_sandbox()
    assert (finding.state, finding.fix) == (state, "Install the package `bubblewrap`.")
    assert detail in finding.detail


def test_another_package_with_our_names_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(doctor_checks.inspect_packages()) == []
    dist_info = tmp_path / "openai_agents-1.0.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: openai-agents\nVersion: 1.0\n"
    )
    (dist_info / "top_level.txt").write_text("agents\n")
    monkeypatch.syspath_prepend(tmp_path)
    [finding] = doctor_checks.inspect_packages()
    assert (finding.state, "openai-agents" in finding.detail) == ("failed", True)


def test_every_problem_has_a_remedy(db: None) -> None:
    assert all(
        finding.fix for finding in doctor_checks.run_settings_checks() if finding.state != "ok"
    )


def test_the_command_succeeds_with_only_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [
        SettingsFinding("python", "ok", "3.11"),
        SettingsFinding("npx", "warning", "absent", "Install it."),
    ]
    monkeypatch.setattr(doctor_checks, "INSPECTIONS", (lambda: iter(findings),))
    text, status = run_doctor()
    assert status == 0
    assert "→ Install it." in text


def test_the_command_fails_when_a_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [SettingsFinding("database", "failed", "away", "Start it.")]
    monkeypatch.setattr(doctor_checks, "INSPECTIONS", (lambda: iter(findings),))
    text, status = run_doctor("--json")
    assert status == 1
    assert json.loads(text) == {"ok": False, "checks": [findings[0].as_dict()]}
