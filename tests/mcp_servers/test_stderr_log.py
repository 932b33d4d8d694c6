"""Stderr of stdio servers: saved, limited, and shown to roles that manage servers."""

import sys
from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from bonobot.accounts.roles import Role
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import Head
from mcp_servers import stderr_log
from mcp_servers.client.child_process import StderrSnapshot
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import ErrorOutput, Server
from mcp_servers.tasks import prune_health_history
from tests import admin_client, factories, rest
from tests.command_line import bonobot as bonobot

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def server(acme) -> Server:
    return factories.create_stdio_server(acme)


def build_snapshot(server, text="", ended="", child_id=None) -> StderrSnapshot:
    return StderrSnapshot(child_id or uuid4(), server.pk, server.organization_id, text, ended)


def test_a_child_has_one_row_that_is_updated(server):
    first = build_snapshot(server, "starting\n")
    stderr_log.write_snapshot(first)
    stderr_log.write_snapshot(
        build_snapshot(server, "starting\nready\n", "it exited with status 3", first.child_id)
    )
    [row] = ErrorOutput.objects.all()
    assert (row.text, row.ended) == ("starting\nready\n", "it exited with status 3")
    assert row.organization_id == server.organization_id
    assert ":" in row.process


def test_logs_of_the_latest_children_of_a_server_are_kept(server, acme):
    other = factories.create_stdio_server(acme, name="other")
    stderr_log.write_snapshot(build_snapshot(other, "other"))
    for number in range(stderr_log.MAX_OUTPUTS_PER_SERVER + 3):
        stderr_log.write_snapshot(build_snapshot(server, f"child {number}\n"))
    texts = [row.text for row in stderr_log.list_error_outputs(server)]
    assert texts == [
        f"child {number}\n" for number in range(3, stderr_log.MAX_OUTPUTS_PER_SERVER + 3)
    ]
    assert (
        stderr_log.load_latest_output(server).splitlines()[-1]
        == f"child {stderr_log.MAX_OUTPUTS_PER_SERVER + 2}"
    )
    assert stderr_log.load_latest_output(other) == "other"


def test_shown_output_is_limited(server):
    for _ in range(3):
        stderr_log.write_snapshot(build_snapshot(server, "x" * stderr_log.MAX_STDERR_BYTES))
    assert len(stderr_log.load_latest_output(server)) == stderr_log.MAX_STDERR_BYTES


def test_the_output_of_a_deleted_server_is_dropped(server):
    snapshot = build_snapshot(server, "late")
    server.delete()
    stderr_log.write_snapshot(snapshot)
    assert not ErrorOutput.objects.exists()


def test_saving_output_keeps_the_policy_generation(server):
    before = Head.objects.get(organization_id=server.organization_id).generation
    stderr_log.write_snapshot(build_snapshot(server, "x"))
    stderr_log.write_snapshot(build_snapshot(server, "y"))
    assert Head.objects.get(organization_id=server.organization_id).generation == before


def test_old_output_is_pruned(server):
    stderr_log.write_snapshot(build_snapshot(server, "old"))
    ErrorOutput.objects.update(
        updated_at=timezone.now() - stderr_log.RETENTION - timedelta(hours=1)
    )
    stderr_log.write_snapshot(build_snapshot(server, "new"))
    assert prune_health_history() == 1
    assert stderr_log.load_latest_output(server) == "new"


@pytest.mark.parametrize(("role", "expected"), [(Role.OPERATOR, "fatal"), (Role.AUDITOR, "")])
def test_rest_returns_output_to_roles_that_manage_servers(acme, server, role, expected):
    stderr_log.write_snapshot(build_snapshot(server, "fatal\n"))
    reader = rest.as_role(acme, role)
    assert reader.get(f"mcp-servers/{server.pk}").json["stderr"] == expected
    assert "stderr" not in reader.get("mcp-servers").json["results"][0]


def test_the_admin_shows_escaped_output_to_roles_that_manage_servers(acme, server):
    stderr_log.write_snapshot(
        build_snapshot(server, "<script>alert(1)</script> & \u202e", "it exited with status 3")
    )
    page = admin_client.sign_in(acme, Role.OPERATOR).get("mcp_servers_server_health", server.pk)
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; ⟨U+202E⟩" in page
    assert "it exited with status 3" in page
    for role in (Role.AUDITOR, Role.REVIEWER):
        assert "alert(1)" not in admin_client.sign_in(acme, role).get(
            "mcp_servers_server_health", server.pk
        )


def test_the_admin_says_that_there_is_no_output(acme, server):
    page = admin_client.sign_in(acme, Role.OPERATOR).get("mcp_servers_server_health", server.pk)
    assert "No recent error output." in admin_client.get_text(page)
    web = admin_client.create_web_server(acme)
    over_http = admin_client.sign_in(acme, Role.OWNER).get("mcp_servers_server_health", web.pk)
    assert "Error output" not in admin_client.get_text(over_http)


@pytest.mark.django_db(transaction=True)
def test_the_output_of_a_real_child_is_saved_and_printed_by_the_command_line(
    acme, bonobot, tmp_path
):
    script = tmp_path / "broken.py"
    script.write_text(
        "import os, sys\n"
        "sys.stderr.write('\\x1b[31mno key: ' + os.environ['KEY'] + '\\x1b[0m\\r\\n\\u202e')\n"
        "sys.exit(7)\n"
    )
    command = f"{sys.executable} {script}"
    added = bonobot("mcp", "add", "broken", "--command", command, "--env", "KEY=hunter2-hunter2")
    assert added.status == 1
    [entry] = bonobot("mcp", "logs", "broken", "--json").json
    assert entry["text"].endswith("no key: ********\n⟨U+202E⟩")
    assert "exited with status 7" in entry["ended"]
    assert "hunter2" not in entry["ended"]
    output = bonobot("mcp", "logs", "broken").out
    assert "no key: ********" in output
    assert "exited with status 7" in output


@pytest.mark.django_db(transaction=True)
def test_a_command_that_cant_start_saves_the_reason(acme, bonobot):
    server = factories.create_stdio_server(acme)
    Server.objects.filter(pk=server.pk).update(endpoint_config={"command": "no-such-command"})
    bonobot("mcp", "test", server.slug)
    [row] = stderr_log.list_error_outputs(server)
    assert "no-such-command" in row.ended


@pytest.mark.django_db(transaction=True)
def test_a_silent_child_leaves_no_row(acme, bonobot):
    server = factories.create_stdio_server(acme)
    assert bonobot("mcp", "test", server.slug).status == 0
    get_runtime().call(get_connection_pool().forget_server, server.pk)
    assert "No recent error output of" in bonobot("mcp", "logs", server.slug).out
    assert bonobot("mcp", "logs", server.slug, "--json").json == []


def test_an_http_server_has_no_output(acme, bonobot):
    admin_client.create_web_server(acme)
    assert "uses HTTP" in bonobot("mcp", "logs", "web").out
