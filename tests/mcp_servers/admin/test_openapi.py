"""APIs in the admin: parsing a document, selecting operations, and changing the selection."""

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
def browser(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OPERATOR)


def build_fields(*operations: str, **more: str) -> dict[str, object]:
    fields = {
        "name": "pets",
        "url": "https://api.example.com/v1",
        "auth_type": "none",
        "approval": "manual",
        "enabled": "on",
        "operation": list(operations),
    }
    return {**fields, **more}


def list_checked(page: str) -> list[str]:
    inputs = re.findall(r'<input[^>]*name="operation"[^>]*>', page)
    return [
        re.findall(r'value="([^"]*)"', input_tag)[0]
        for input_tag in inputs
        if " checked" in input_tag
    ]


def test_the_form_asks_for_a_document(browser: admin_client.AdminClient) -> None:
    assert "Read document" in browser.get(ADD)


def test_the_picker_preselects_read_operations_and_explains_refused_ones(
    browser: admin_client.AdminClient,
) -> None:
    page = browser.post(ADD, document=TEXT, do="preview")
    assert list_checked(page) == ["GET /pets", "GET /pets/{id}"]
    assert "The operation is not an object." in page
    assert "/paths/~1bad/get" in page
    assert "isn&#x27;t encrypted" in page
    assert 'value="api_key"' in page
    assert not Server.objects.exists()


def test_selected_operations_are_added(browser: admin_client.AdminClient) -> None:
    browser.post(ADD, document=TEXT, do="add", **build_fields("GET /pets", "POST /pets"))
    server = Server.objects.get()
    assert server.endpoint_config["operations"] == ["GET /pets", "POST /pets"]
    assert server.transport_type == "openapi"
    assert ApiDocument.objects.get(server=server).text == TEXT


def test_an_empty_selection_adds_nothing_and_keeps_the_form(
    browser: admin_client.AdminClient,
) -> None:
    page = browser.post(ADD, document=TEXT, do="add", **build_fields(name="mypets"))
    assert "nothing_selected" in page
    assert 'value="mypets"' in page
    assert not Server.objects.exists()


@pytest.mark.parametrize("document", ["", "<html>", '{"swagger": "2.0"}'])
def test_an_invalid_document_is_reported(browser: admin_client.AdminClient, document: str) -> None:
    page = browser.post(ADD, status=400, document=document, do="preview")
    assert "Read document" in page
    assert 'role="alert"' in page


def test_the_selection_can_be_changed_later(browser: admin_client.AdminClient) -> None:
    browser.post(ADD, document=TEXT, do="add", **build_fields("GET /pets"))
    server = Server.objects.get()
    name = "mcp_servers_server_configuration"
    assert list_checked(browser.get(name, server.pk)) == ["GET /pets"]
    browser.post(name, server.pk, **build_fields("DELETE /pets/{id}"))
    server.refresh_from_db()
    assert server.endpoint_config["operations"] == ["DELETE /pets/{id}"]
    assert ApiDocument.objects.get(server=server).text == TEXT


def test_a_read_only_role_sees_the_selection_and_cant_change_it(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    browser.post(ADD, document=TEXT, do="add", **build_fields("GET /pets"))
    server = Server.objects.get()
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    page = auditor.get("mcp_servers_server_configuration", server.pk)
    assert "GET" in page
    assert ">Save<" not in page
    assert admin_client.list_form_fields(page) == []
    assert admin_client.list_form_fields(browser.get("mcp_servers_server_configuration", server.pk))
    assert page.count('aria-label="Selected"') == 1
    auditor.get(ADD, status=403)


def test_hidden_characters_of_a_document_are_shown(browser: admin_client.AdminClient) -> None:
    odd = {"/odd": {"get": {"summary": "a\u202eb<script>"}}}
    page = browser.post(ADD, document=text(odd), do="preview")
    visible = page.partition("<textarea")[0]
    assert "\u202e" not in visible
    assert "b<script>" not in visible


@pytest.mark.parametrize("role", [None, Role.OPERATOR])
def test_the_refusal_of_a_private_document_url_names_the_checkbox_to_those_who_can_allow_it(
    acme: Organization, role: Role | None
) -> None:
    client = admin_client.sign_in(acme, role)
    page = client.post(ADD, status=400, document_url="http://10.0.0.1/openapi.json", do="preview")
    text = admin_client.get_text(page)
    assert "Connections to 10.0.0.1 need" in text
    select = "Select “Allow private or loopback address” and check again."
    assert (select in text) is (role is None)
