"""HTTP operations in the admin: declared in a form, previewed, changed, removed."""

import html
import re

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from mcp_servers.models import Server
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
ADD = "mcp_servers_server_operations"
PREVIEW = "mcp_servers_server_operation_preview"
OPERATION = "mcp_servers_server_operation"
CONFIGURATION = "mcp_servers_server_configuration"
REMOVE = "mcp_servers_server_remove_operation"
URL = "https://api.example.com/v1"


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def browser(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OPERATOR)


def build_parameter(
    name: str, location: str = "query", kind: str = "string", **more: str
) -> dict[str, str]:
    return {"name": name, "in": location, "type": kind} | more


def build_operation(*rows: dict[str, str], **more: object) -> dict[str, object]:
    columns = ("name", "in", "type", "required", "description", "default", "enum")
    fields: dict[str, object] = {
        "op-name": "get_order",
        "op-description": "Look up an order.",
        "op-method": "GET",
        "op-path": "/orders/{id}",
        "op-body": "json",
    }
    fields |= {f"p-{column}": [row.get(column, "") for row in rows] for column in columns}
    return fields | more


def build_server_fields(**more: object) -> dict[str, object]:
    fields: dict[str, object] = {"name": "shop", "url": URL, "auth_type": "none"}
    return fields | {"approval": "manual", "enabled": "on"} | more


def create_api_server(
    browser: admin_client.AdminClient, *rows: dict[str, str], **more: object
) -> Server:
    browser.post(ADD, **build_server_fields(), **build_operation(*rows, **more))
    api_server: Server = Server.objects.get()
    return api_server


def test_a_server_is_added_with_its_first_operation(browser: admin_client.AdminClient) -> None:
    assert "First operation" in browser.get(ADD)
    api_server = create_api_server(
        browser,
        build_parameter("id", "path", "integer", description="The order's number"),
        build_parameter("state", enum="open, closed", default="open"),
        build_parameter("tags", kind="string[]", default='["a,b", "c"]'),
        build_parameter(""),
        **{"op-result": "data.order", "op-labelled": "chosen", "op-labels": ["private_data"]},
    )
    [declared] = api_server.endpoint_config["declared"]
    assert declared["parameters"] == [
        {
            "name": "id",
            "in": "path",
            "type": "integer",
            "required": True,
            "description": "The order's number",
        },
        {
            "name": "state",
            "in": "query",
            "type": "string",
            "required": False,
            "default": "open",
            "enum": ["open", "closed"],
        },
        {
            "name": "tags",
            "in": "query",
            "type": "string[]",
            "required": False,
            "default": ["a,b", "c"],
        },
    ]
    assert (declared["result"], declared["labels"]) == ("/data/order", ["private_data"])


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"op-name": ""}, "missing_value"),
        ({"op-name": "a b"}, "bad_name"),
        ({"op-description": ""}, "missing_value"),
        ({"op-path": "https://{host}/orders"}, "host_is_parameter"),
        ({"op-path": "https://elsewhere.example/orders"}, "other_address"),
        ({"op-path": "/orders?state=open"}, "bad_path"),
        ({"op-result": ".."}, "bad_result"),
        ({"url": "http://127.0.0.1:1"}, "private_address"),
        ({"url": ""}, "bad_url"),
        (build_operation(build_parameter("n", kind="integer", default="x")), "bad_value"),
        (build_operation(build_parameter("n"), build_parameter("n")), "duplicate_name"),
        (build_operation(build_parameter("", description="what")), "missing_value"),
        (build_operation(build_parameter("Authorization", "header")), "reserved_header"),
        (build_operation(build_parameter("field", "body")), "body_not_sent"),
    ],
)
def test_invalid_values_are_reported_at_their_field_and_nothing_is_written(
    browser: admin_client.AdminClient, changes: dict[str, object], code: str
) -> None:
    page = browser.post(
        ADD, **{**build_server_fields(name="myshop"), **build_operation(), **changes}
    )
    assert f"<code>{code}</code>" in page
    assert 'value="myshop"' in page
    assert not Server.objects.exists()


def test_a_preview_shows_the_request_of_the_current_form(browser: admin_client.AdminClient) -> None:
    rows = [
        build_parameter("limit", kind="integer", default="20"),
        build_parameter("X-Trace", "header"),
    ]
    page = html.unescape(
        browser.post(PREVIEW, url=URL, **build_operation(*rows, **{"op-name": ""}))
    )
    assert f"{URL}/orders/ID?limit=20" in page
    assert "X-Trace: X-TRACE" in page
    fields = build_operation(build_parameter("customer.email", "body"), **{"op-method": "POST"})
    assert '"email"' in html.unescape(browser.post(PREVIEW, url=URL, **fields))


def test_a_preview_of_an_invalid_form_explains_the_error(browser: admin_client.AdminClient) -> None:
    assert "The host can&#x27;t be a parameter" in browser.post(
        PREVIEW, url=URL, **build_operation(**{"op-path": "//{h}/x"})
    )
    assert "host" in browser.post(PREVIEW, url="https://{h}.example.com", **build_operation())
    assert "to preview the request" in browser.post(PREVIEW, url="", **build_operation())
    assert not Server.objects.exists()


def test_operations_are_listed_created_and_updated(browser: admin_client.AdminClient) -> None:
    shop = create_api_server(
        browser, build_parameter("tags", kind="string[]", default='["a,b", "c"]', enum="")
    )
    page = browser.get(CONFIGURATION, shop.pk)
    assert "not discovered yet" in page
    assert "Add operation" in page
    more = build_operation(**{"op-name": "list_orders", "op-path": "/orders"})
    browser.send(f"{admin_client.build_url(OPERATION, shop.pk)}", more)
    shop.refresh_from_db()
    assert shop.endpoint_config["operations"] == ["GET /orders", "GET /orders/{id}"]
    page = html.unescape(
        browser.open(f"{admin_client.build_url(OPERATION, shop.pk)}?name=get_order")
    )
    assert 'value="["a,b", "c"]"' in page
    assert f"{URL}/orders/ID?tags=a%2Cb&tags=c" in page
    browser.send(
        f"{admin_client.build_url(OPERATION, shop.pk)}?name=get_order",
        build_operation(**{"op-path": f"{URL}/order/{{id}}"}),
    )
    shop.refresh_from_db()
    assert shop.endpoint_config["operations"] == ["GET /order/{id}", "GET /orders"]
    clash = build_operation(**{"op-name": "list_orders", "op-path": "/order/{id}"})
    page = browser.send(f"{admin_client.build_url(OPERATION, shop.pk)}?name=get_order", clash)
    assert "<code>duplicate_name</code>" in page
    browser.open(f"{admin_client.build_url(OPERATION, shop.pk)}?name=nothing", status=404)


def test_saving_an_unchanged_operation_changes_nothing(browser: admin_client.AdminClient) -> None:
    shop = create_api_server(
        browser,
        build_parameter("n", kind="number", enum="1.5, 2", default="2"),
        build_parameter("texts", enum='["a,b", " c"]'),
        build_parameter("deep", kind="object", default='{"a": 1}'),
        build_parameter("yes", kind="boolean", default="false"),
    )
    before = shop.endpoint_config
    address = f"{admin_client.build_url(OPERATION, shop.pk)}?name=get_order"
    page = browser.open(address)
    rows = []
    for part in (
        page.partition("data-pair-list")[2].partition("<template>")[0].split("bb-pair ")[1:]
    ):
        fields = dict(re.findall(r'name="p-(\w+)" value="([^"]*)"', part))
        for name, options in re.findall(r'<select[^>]*name="p-(\w+)"[^>]*>(.*?)</select>', part):
            selected = re.search(r'value="([^"]*)" selected', options)
            fields[name] = selected[1] if selected else ""
        rows.append({name: html.unescape(value) for name, value in fields.items()})
    browser.send(address, build_operation(*rows))
    shop.refresh_from_db()
    assert shop.endpoint_config == before


def test_the_server_can_be_updated_next_to_its_operations(
    browser: admin_client.AdminClient,
) -> None:
    shop = create_api_server(browser)
    browser.post(CONFIGURATION, shop.pk, **build_server_fields(url="https://api.example.com/v2"))
    shop.refresh_from_db()
    assert shop.endpoint_config["url"] == "https://api.example.com/v2"
    assert [operation["name"] for operation in shop.endpoint_config["declared"]] == ["get_order"]
    assert "declared manually" in browser.get("mcp_servers_server_change", shop.pk)


def test_an_operation_is_deleted_after_confirmation_but_not_the_last_one(
    browser: admin_client.AdminClient,
) -> None:
    shop = create_api_server(browser)
    more = build_operation(**{"op-name": "list_orders", "op-path": "/orders"})
    browser.send(admin_client.build_url(OPERATION, shop.pk), more)
    address = f"{admin_client.build_url(REMOVE, shop.pk)}?name=list_orders"
    assert "Delete list_orders?" in browser.open(address)
    shop.refresh_from_db()
    assert len(shop.endpoint_config["declared"]) == 2
    browser.send(address, {})
    shop.refresh_from_db()
    assert [operation["name"] for operation in shop.endpoint_config["declared"]] == ["get_order"]
    browser.send(f"{admin_client.build_url(REMOVE, shop.pk)}?name=get_order", {}, status=200)
    shop.refresh_from_db()
    assert [operation["name"] for operation in shop.endpoint_config["declared"]] == ["get_order"]


def test_a_read_only_role_sees_the_operations_and_cant_change_them(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    shop = create_api_server(browser)
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    page = auditor.get(CONFIGURATION, shop.pk)
    assert "get_order" in page
    assert "Add operation" not in page
    assert admin_client.list_form_fields(page) == []
    auditor.get(OPERATION, shop.pk, status=403)
    auditor.get(ADD, status=403)
    auditor.open(f"{admin_client.build_url(REMOVE, shop.pk)}?name=get_order", status=403)
    stranger = admin_client.sign_in(factories.create_organization("other"), Role.OPERATOR)
    stranger.get(OPERATION, shop.pk, status=404)


def test_an_agent_gets_its_own_api(acme: Organization) -> None:
    administrator = admin_client.sign_in(acme, None)
    agent = factories.create_agent(acme)
    administrator.post(
        "agents_agent_operations", agent.pk, **build_server_fields(), **build_operation()
    )
    assert Server.objects.get().scope_id == agent.pk


def test_hidden_characters_are_shown(browser: admin_client.AdminClient) -> None:
    shop = create_api_server(browser, **{"op-description": "a\u202eb<script>"})
    page = browser.get(CONFIGURATION, shop.pk)
    assert "\u202e" not in page
    assert "b<script>" not in page
