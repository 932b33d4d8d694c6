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
ONE = "mcp_servers_server_operation"
CONFIGURATION = "mcp_servers_server_configuration"
REMOVE = "mcp_servers_server_remove_operation"
URL = "https://api.example.com/v1"


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def seat(acme: Organization) -> admin_client.Desk:
    return admin_client.sit(acme, Role.OPERATOR)


def row(name: str, place: str = "query", kind: str = "string", **more: str) -> dict[str, str]:
    return {"name": name, "in": place, "type": kind} | more


def operation(*rows: dict[str, str], **more: object) -> dict[str, object]:
    columns = ("name", "in", "type", "required", "description", "default", "enum")
    fields: dict[str, object] = {
        "op-name": "get_order",
        "op-description": "Look up an order.",
        "op-method": "GET",
        "op-path": "/orders/{id}",
        "op-body": "json",
    }
    fields |= {f"p-{column}": [one.get(column, "") for one in rows] for column in columns}
    return fields | more


def server(**more: object) -> dict[str, object]:
    fields: dict[str, object] = {"name": "shop", "url": URL, "auth_type": "none"}
    return fields | {"approval": "manual", "enabled": "on"} | more


def made(seat: admin_client.Desk, *rows: dict[str, str], **more: object) -> Server:
    seat.post(ADD, **server(), **operation(*rows, **more))
    found: Server = Server.objects.get()
    return found


def test_a_server_is_added_with_its_first_operation(seat: admin_client.Desk) -> None:
    assert "First operation" in seat.get(ADD)
    found = made(
        seat,
        row("id", "path", "integer", description="The order's number"),
        row("state", enum="open, closed", default="open"),
        row("tags", kind="string[]", default='["a,b", "c"]'),
        row(""),
        **{"op-result": "data.order", "op-labelled": "chosen", "op-labels": ["private_data"]},
    )
    [kept] = found.endpoint_config["declared"]
    assert kept["parameters"] == [
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
    assert (kept["result"], kept["labels"]) == ("/data/order", ["private_data"])


@pytest.mark.parametrize(
    ("said", "code"),
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
        (operation(row("n", kind="integer", default="x")), "bad_value"),
        (operation(row("n"), row("n")), "duplicate_name"),
        (operation(row("", description="what")), "missing_value"),
        (operation(row("Authorization", "header")), "reserved_header"),
        (operation(row("field", "body")), "body_not_sent"),
    ],
)
def test_invalid_values_are_reported_at_their_field_and_nothing_is_written(
    seat: admin_client.Desk, said: dict[str, object], code: str
) -> None:
    page = seat.post(ADD, **{**server(name="myshop"), **operation(), **said})
    assert f"({code})" in page
    assert 'value="myshop"' in page
    assert not Server.objects.exists()


def test_a_preview_shows_the_request_of_the_current_form(seat: admin_client.Desk) -> None:
    rows = [row("limit", kind="integer", default="20"), row("X-Trace", "header")]
    page = html.unescape(seat.post(PREVIEW, url=URL, **operation(*rows, **{"op-name": ""})))
    assert f"{URL}/orders/ID?limit=20" in page
    assert "X-Trace: X-TRACE" in page
    fields = operation(row("customer.email", "body"), **{"op-method": "POST"})
    assert '"email"' in html.unescape(seat.post(PREVIEW, url=URL, **fields))


def test_a_preview_of_an_invalid_form_explains_the_error(seat: admin_client.Desk) -> None:
    assert "The host can&#x27;t be a parameter" in seat.post(
        PREVIEW, url=URL, **operation(**{"op-path": "//{h}/x"})
    )
    assert "host" in seat.post(PREVIEW, url="https://{h}.example.com", **operation())
    assert "to preview the request" in seat.post(PREVIEW, url="", **operation())
    assert not Server.objects.exists()


def test_operations_are_listed_created_and_updated(seat: admin_client.Desk) -> None:
    shop = made(seat, row("tags", kind="string[]", default='["a,b", "c"]', enum=""))
    page = seat.get(CONFIGURATION, shop.pk)
    assert "not discovered yet" in page
    assert "Add operation" in page
    more = operation(**{"op-name": "list_orders", "op-path": "/orders"})
    seat.send(f"{admin_client.url(ONE, shop.pk)}", more)
    shop.refresh_from_db()
    assert shop.endpoint_config["operations"] == ["GET /orders", "GET /orders/{id}"]
    page = html.unescape(seat.open(f"{admin_client.url(ONE, shop.pk)}?name=get_order"))
    assert 'value="["a,b", "c"]"' in page
    assert f"{URL}/orders/ID?tags=a%2Cb&tags=c" in page
    seat.send(
        f"{admin_client.url(ONE, shop.pk)}?name=get_order",
        operation(**{"op-path": f"{URL}/order/{{id}}"}),
    )
    shop.refresh_from_db()
    assert shop.endpoint_config["operations"] == ["GET /order/{id}", "GET /orders"]
    clash = operation(**{"op-name": "list_orders", "op-path": "/order/{id}"})
    page = seat.send(f"{admin_client.url(ONE, shop.pk)}?name=get_order", clash)
    assert "(duplicate_name)" in page
    seat.open(f"{admin_client.url(ONE, shop.pk)}?name=nothing", status=404)


def test_saving_an_unchanged_operation_changes_nothing(seat: admin_client.Desk) -> None:
    shop = made(
        seat,
        row("n", kind="number", enum="1.5, 2", default="2"),
        row("texts", enum='["a,b", " c"]'),
        row("deep", kind="object", default='{"a": 1}'),
        row("yes", kind="boolean", default="false"),
    )
    before = shop.endpoint_config
    address = f"{admin_client.url(ONE, shop.pk)}?name=get_order"
    page = seat.open(address)
    rows = []
    for part in (
        page.partition("data-pair-list")[2].partition("<template>")[0].split("bb-pair ")[1:]
    ):
        one = dict(re.findall(r'name="p-(\w+)" value="([^"]*)"', part))
        for name, options in re.findall(r'<select[^>]*name="p-(\w+)"[^>]*>(.*?)</select>', part):
            chosen = re.search(r'value="([^"]*)" selected', options)
            one[name] = chosen[1] if chosen else ""
        rows.append({name: html.unescape(value) for name, value in one.items()})
    seat.send(address, operation(*rows))
    shop.refresh_from_db()
    assert shop.endpoint_config == before


def test_the_server_can_be_updated_next_to_its_operations(seat: admin_client.Desk) -> None:
    shop = made(seat)
    seat.post(CONFIGURATION, shop.pk, **server(url="https://api.example.com/v2"))
    shop.refresh_from_db()
    assert shop.endpoint_config["url"] == "https://api.example.com/v2"
    assert [one["name"] for one in shop.endpoint_config["declared"]] == ["get_order"]
    assert "declared manually" in seat.get("mcp_servers_server_change", shop.pk)


def test_an_operation_is_deleted_after_confirmation_but_not_the_last_one(
    seat: admin_client.Desk,
) -> None:
    shop = made(seat)
    more = operation(**{"op-name": "list_orders", "op-path": "/orders"})
    seat.send(admin_client.url(ONE, shop.pk), more)
    address = f"{admin_client.url(REMOVE, shop.pk)}?name=list_orders"
    assert "Delete list_orders?" in seat.open(address)
    shop.refresh_from_db()
    assert len(shop.endpoint_config["declared"]) == 2
    seat.send(address, {})
    shop.refresh_from_db()
    assert [one["name"] for one in shop.endpoint_config["declared"]] == ["get_order"]
    seat.send(f"{admin_client.url(REMOVE, shop.pk)}?name=get_order", {}, status=200)
    shop.refresh_from_db()
    assert [one["name"] for one in shop.endpoint_config["declared"]] == ["get_order"]


def test_a_read_only_role_sees_the_operations_and_cant_change_them(
    acme: Organization, seat: admin_client.Desk
) -> None:
    shop = made(seat)
    auditor = admin_client.sit(acme, Role.AUDITOR)
    page = auditor.get(CONFIGURATION, shop.pk)
    assert "get_order" in page
    assert "Add operation" not in page
    auditor.get(ONE, shop.pk, status=403)
    auditor.get(ADD, status=403)
    auditor.open(f"{admin_client.url(REMOVE, shop.pk)}?name=get_order", status=403)
    stranger = admin_client.sit(factories.create_organization("other"), Role.OPERATOR)
    stranger.get(ONE, shop.pk, status=404)


def test_an_agent_gets_its_own_api(acme: Organization) -> None:
    boss = admin_client.sit(acme, None)
    agent = factories.create_agent(acme)
    boss.post("agents_agent_operations", agent.pk, **server(), **operation())
    assert Server.objects.get().scope_id == agent.pk


def test_hidden_characters_are_shown(seat: admin_client.Desk) -> None:
    shop = made(seat, **{"op-description": "a\u202eb<script>"})
    page = seat.get(CONFIGURATION, shop.pk)
    assert "\u202e" not in page
    assert "b<script>" not in page
