"""APIs in the admin: a document is read, its operations are chosen, and chosen anew later."""

import re

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from mcp_servers.models import ApiDocument, Server
from tests import admin_client, factories
from tests.mcp_servers.openapi.documents import PETS, text

pytestmark = pytest.mark.django_db
SCHEMES = {"securitySchemes": {"k": {"type": "apiKey", "in": "query", "name": "api_key"}}}
TEXT = text(
    PETS | {"/bad": {"get": []}},
    servers=[{"url": "http://api.example.com/v1"}],
    components=SCHEMES,
)
ADD = "mcp_servers_server_openapi"


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def seat(acme: Organization) -> admin_client.Desk:
    return admin_client.sit(acme, Role.OPERATOR)


def said(*operations: str, **more: str) -> dict[str, object]:
    fields = {
        "name": "pets",
        "url": "https://api.example.com/v1",
        "auth_type": "none",
        "approval": "manual",
        "enabled": "on",
        "operation": list(operations),
    }
    return {**fields, **more}


def ticked(page: str) -> list[str]:
    boxes = re.findall(r'<input[^>]*name="operation"[^>]*>', page)
    return [re.findall(r'value="([^"]*)"', box)[0] for box in boxes if " checked" in box]


def test_the_form_asks_for_a_document(seat: admin_client.Desk) -> None:
    assert "Read document" in seat.get(ADD)


def test_the_picker_preselects_read_operations_and_explains_refused_ones(
    seat: admin_client.Desk,
) -> None:
    page = seat.post(ADD, document=TEXT, do="preview")
    assert ticked(page) == ["GET /pets", "GET /pets/{id}"]
    assert "The operation is not an object." in page
    assert "/paths/~1bad/get" in page
    assert "isn&#x27;t encrypted" in page
    assert 'value="api_key"' in page
    assert not Server.objects.exists()


def test_selected_operations_are_added(seat: admin_client.Desk) -> None:
    seat.post(ADD, document=TEXT, do="add", **said("GET /pets", "POST /pets"))
    server = Server.objects.get()
    assert server.endpoint_config["operations"] == ["GET /pets", "POST /pets"]
    assert server.transport_type == "openapi"
    assert ApiDocument.objects.get(server=server).text == TEXT


def test_an_empty_selection_adds_nothing_and_keeps_the_form(seat: admin_client.Desk) -> None:
    page = seat.post(ADD, document=TEXT, do="add", **said(name="mypets"))
    assert "nothing_chosen" in page
    assert 'value="mypets"' in page
    assert not Server.objects.exists()


@pytest.mark.parametrize("document", ["", "<html>", '{"swagger": "2.0"}'])
def test_an_invalid_document_is_reported(seat: admin_client.Desk, document: str) -> None:
    page = seat.post(ADD, status=400, document=document, do="preview")
    assert "Read document" in page
    assert 'role="alert"' in page


def test_the_selection_can_be_changed_later(seat: admin_client.Desk) -> None:
    seat.post(ADD, document=TEXT, do="add", **said("GET /pets"))
    server = Server.objects.get()
    name = "mcp_servers_server_configuration"
    assert ticked(seat.get(name, server.pk)) == ["GET /pets"]
    seat.post(name, server.pk, **said("DELETE /pets/{id}"))
    server.refresh_from_db()
    assert server.endpoint_config["operations"] == ["DELETE /pets/{id}"]
    assert ApiDocument.objects.get(server=server).text == TEXT


def test_a_read_only_role_sees_the_selection_and_cant_change_it(
    acme: Organization, seat: admin_client.Desk
) -> None:
    seat.post(ADD, document=TEXT, do="add", **said("GET /pets"))
    server = Server.objects.get()
    auditor = admin_client.sit(acme, Role.AUDITOR)
    page = auditor.get("mcp_servers_server_configuration", server.pk)
    assert "GET" in page
    assert ">Save<" not in page
    auditor.get(ADD, status=403)


def test_hidden_characters_of_a_document_are_shown(seat: admin_client.Desk) -> None:
    odd = {"/odd": {"get": {"summary": "a\u202eb<script>"}}}
    page = seat.post(ADD, document=text(odd), do="preview")
    shown = page.partition("<textarea")[0]
    assert "\u202e" not in shown
    assert "b<script>" not in shown
