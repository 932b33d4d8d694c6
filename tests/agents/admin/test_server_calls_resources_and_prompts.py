"""Reading resources and rendering prompts on a server's pages."""

import pytest

from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.models import Definition
from tests import admin_client

pytestmark = pytest.mark.django_db(transaction=True)

PNG = "data:image/png;base64,iVBOR"


@pytest.fixture
def owner(acme):
    yield admin_client.sign_in(acme, Role.OWNER)
    get_writer().close()


@pytest.fixture
def try_definition(owner, library):
    def send_request(kind, name, **fields):
        page = "mcp_servers_server_try_definition"
        return owner.post(page, library.pk, kind=kind, name=name, **fields)

    return send_request


def test_every_kind_of_definition_can_be_tried(owner, library):
    page = owner.get("mcp_servers_server_definitions", library.pk)
    assert "kind=resources&amp;name=lib%3A%2F%2Frules" in page
    assert "kind=prompts&amp;name=review" in page
    form = owner.get(
        "mcp_servers_server_try_definition", library.pk, kind="resources", name="lib://rules"
    )
    assert '<option value="lib://rules" selected>' in form
    assert "House rules" in form


def test_a_link_to_a_missing_definition_opens_no_other(owner, library, try_definition):
    Definition.objects.filter(name="lib://rules").update(present=False)
    page = owner.get(
        "mcp_servers_server_try_definition", library.pk, kind="resources", name="lib://rules"
    )
    assert "<code>not_found</code>" in page
    assert "<code>not_found</code>" in try_definition("resources", "lib://rules")
    assert not AuditRow.objects.filter(resource_type="mcp_resource").exists()


def test_a_resource_is_read_and_shown_by_its_type(owner, try_definition):
    assert "# Be quiet" in try_definition("resources", "lib://rules")
    assert AuditRow.objects.get(resource_type="mcp_resource").outcome == "ok"
    assert PNG in try_definition("resources", "lib://logo")
    page = try_definition("resources", "lib://page")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page


def test_a_template_is_filled_with_its_variables(try_definition):
    page = try_definition("resources", "lib://books/{book}", **{"in-book": "war & peace"})
    assert "the text of lib://books/war%20%26%20peace" in page
    assert "unknown_resource" in try_definition(
        "resources", "lib://books/{book}", **{"in-book": ".."}
    )


def test_a_prompt_is_rendered_and_its_messages_shown(try_definition):
    page = try_definition("prompts", "review", **{"in-book": "<b>Emma</b>", "in-tone": ""})
    assert "Review &lt;b&gt;Emma&lt;/b&gt; (plainly)" in page
    assert PNG in page
    assert "invalid_arguments" not in page


def test_a_definition_pending_review_is_tried_only_after_confirmation(try_definition):
    Definition.objects.update(pinned=None, pinned_digest="")
    assert "not_approved" in try_definition("prompts", "plain")
    assert "not_approved" not in try_definition("prompts", "plain", unapproved="1")


def test_the_page_of_a_server_without_resources_says_so(owner, workshop):
    page = owner.get("mcp_servers_server_try_definition", workshop.pk)
    assert "This server has no resources." in page
