"""Trying a tool: a real call through the pipeline, with its result or its denial."""

from collections.abc import Iterator

import pytest

from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.models import Definition, Server
from tests import admin_client

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def owner(acme: Organization) -> Iterator[admin_client.AdminClient]:
    yield admin_client.sign_in(acme, Role.OWNER)
    get_writer().close()


def try_tool(
    owner: admin_client.AdminClient, server: Server, tool: str, arguments: str, **extra: str
) -> str:
    fields = {"tool": tool, "arguments": arguments, **extra}
    return owner.post("mcp_servers_server_try", server.pk, **fields)


def test_the_form_starts_with_valid_arguments(
    workshop: Server, owner: admin_client.AdminClient
) -> None:
    tool = workshop.definitions.tools().order_by("name")[0]
    page = owner.get("mcp_servers_server_try", workshop.pk, tool=tool.name)
    assert f'<option value="{tool.name}" selected>' in page


def test_a_link_to_a_missing_tool_opens_no_other_tool(
    workshop: Server, owner: admin_client.AdminClient
) -> None:
    Definition.objects.filter(name="add").update(present=False)
    page = owner.get("mcp_servers_server_try", workshop.pk, tool="add")
    assert "<code>not_found</code>" in page
    assert 'name="arguments"' not in page


def test_a_result_is_shown_and_recorded(
    workshop: Server, helper: Agent, owner: admin_client.AdminClient
) -> None:
    page = try_tool(owner, workshop, "add", '{"a": 2, "b": 40}')
    assert "42" in admin_client.get_text(page)
    row = AuditRow.objects.get(tool_name="add", event_type="call")
    assert (row.outcome, row.actor_id) == ("ok", str(owner.user.pk))
    assert admin_client.build_url("ledger_auditrow_change", row.pk) in page


def test_the_form_of_the_input_schema_builds_the_arguments(
    workshop: Server, helper: Agent, owner: admin_client.AdminClient
) -> None:
    names = list(workshop.definitions.get(name="add").input_schema["properties"])
    fields = {f"arg-{names.index('a')}": "2", f"arg-{names.index('b')}": "40"}
    page = try_tool(owner, workshop, "add", "", input="form", **fields)
    assert "42" in admin_client.get_text(page)
    assert "invalid_arguments" in try_tool(
        owner, workshop, "add", "", input="form", **{"arg-0": "x"}
    )


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("add", "{", "broken_json"),
        ("add", "[1]", "invalid_arguments"),
        ("add", '{"a": "x"}', "invalid_arguments"),
        ("nothing", "{}", "unknown_tool"),
    ],
)
def test_a_denial_shows_its_reason_and_code(
    workshop: Server, owner: admin_client.AdminClient, tool: str, arguments: str, code: str
) -> None:
    assert code in try_tool(owner, workshop, tool, arguments)


def test_a_tool_pending_review_is_tried_only_after_confirmation(
    workshop: Server, owner: admin_client.AdminClient
) -> None:
    Definition.objects.update(pinned=None, pinned_digest="")
    assert "not_approved" in try_tool(owner, workshop, "add", '{"a": 2, "b": 40}')
    page = try_tool(owner, workshop, "add", '{"a": 2, "b": 40}', unapproved="1")
    assert "42" in admin_client.get_text(page)


def test_an_auditor_cant_try_tools(workshop: Server, acme: Organization) -> None:
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    auditor.get("mcp_servers_server_try", workshop.pk, status=403)
    assert "Try it" not in admin_client.get_text(
        auditor.get("mcp_servers_server_change", workshop.pk)
    )
