"""`bonobot mcp add-operation` and related commands, with a real API."""

import json

import pytest

from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Secret, Server
from tests.servers.rest_api_server import open_shop

pytestmark = pytest.mark.django_db(transaction=True)

GET_ORDER = ("--param", "id:integer:path!:The order's number", "--description", "Look up an order.")


@pytest.fixture
def shop():
    with open_shop() as open_api:
        yield open_api
        for server in Server.objects.all():
            get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture
def operation(bonobot, shop, monkeypatch):
    monkeypatch.setenv("SHOP_TOKEN", "sesame-sesame")
    result = bonobot(
        *("mcp", "add-operation", "shop", "get_order", "--url", f"{shop.url}/orders/{{id}}"),
        *(*GET_ORDER, "--bearer", "${SHOP_TOKEN}", "--allow-private", "--approve", "--json"),
    )
    assert result.status == 0, result.err
    return result.json


def test_the_first_operation_creates_the_server_and_can_be_called(bonobot, shop, operation):
    assert (operation["state"], operation["server"]) == ("approved", "shop")
    assert operation["parameters"] == [
        {
            "name": "id",
            "in": "path",
            "type": "integer",
            "required": True,
            "description": "The order's number",
        }
    ]
    assert Secret.objects.get().value.open() == "sesame-sesame"
    result = bonobot("mcp", "test-tool", "shop", "get_order", '{"id": 7}', "--json")
    assert result.status == 0, result.err
    [request] = shop.arrived
    assert (request.method, request.path) == ("GET", "/orders/7")
    assert request.headers["Authorization"] == "Bearer sesame-sesame"


def test_operations_are_added_replaced_listed_and_removed(bonobot, shop, operation):
    result = bonobot(
        *("mcp", "add-operation", "shop", "list_orders", "--url", "/orders"),
        *("--param", "state", "--choices", "state=open,closed", "--default", "state=open"),
        *("--param", "tags:string[]", "--default", "tags=a,b", "--param", "limit:integer"),
        *("--default", "limit=20", "--result", "data.order", "--label", "private_data"),
        *("--description", "List orders.", "--json"),
    )
    assert result.json["state"] == "pending"
    assert [row.get("default") for row in result.json["parameters"]] == ["open", ["a", "b"], 20]
    assert result.json["parameters"][0]["enum"] == ["open", "closed"]
    bonobot("mcp", "approve", "shop")
    bonobot("mcp", "test-tool", "shop", "list_orders")
    assert shop.arrived[0].path == "/orders?state=open&tags=a&tags=b&limit=20"
    replacement = ("--url", "/orders", "--description", "List what was ordered.")
    result = bonobot("mcp", "add-operation", "shop", "list_orders", *replacement, "--replace")
    assert "bonobot mcp approve shop list_orders" in result.out
    operations = {row["name"]: row for row in bonobot("mcp", "operations", "shop", "--json").json}
    assert operations["list_orders"]["state"] == "changed"
    assert operations["get_order"]["state"] == "approved"
    assert bonobot("mcp", "remove-operation", "shop", "list_orders").status == 0
    assert "list_orders" not in bonobot("mcp", "operations", "shop").out
    result = bonobot("mcp", "remove-operation", "shop", "get_order", "--json")
    assert (result.status, result.error["code"]) == (1, "last_operation")


def test_fields_are_sent_in_the_body_of_write_methods(bonobot, shop, operation):
    result = bonobot(
        *("mcp", "add-operation", "shop", "add_order", "--method", "post", "--url", "/orders"),
        *("--param", "customer.email!:::Whom it is for", "--param", "count:integer"),
        *("--description", "Order something.", "--approve", "--json"),
    )
    assert result.json["parameters"][0]["description"] == "Whom it is for"
    body = {"customer": {"email": "a@example.com"}, "count": 2}
    bonobot("mcp", "test-tool", "shop", "add_order", json.dumps({"body": body}))
    [request] = shop.arrived
    assert (request.method, json.loads(request.body)) == ("POST", body)


def test_a_dry_run_shows_the_request_and_writes_nothing(bonobot, shop):
    result = bonobot(
        *("mcp", "add-operation", "shop", "get_order", "--url", "https://a.example/orders/{id}"),
        *(*GET_ORDER, "--dry-run"),
    )
    assert "GET https://a.example/orders/1" in result.out
    assert not Server.objects.exists()
    assert shop.arrived == []


REFUSED = {
    "no server and no address": (("shop", "x", "--url", "/x"), "base_url_missing"),
    "no server to declare it anew": (("shop", "x", "--url", "/x", "--replace"), "not_found"),
    "a host that is a parameter": (("shop", "x", "--url", "https://{h}.example/x"), None),
    "a private address": (("shop", "x", "--url", "http://127.0.0.1:9/x"), "private_address"),
    "a type that isn't there": (
        ("shop", "x", "--url", "https://a.example/x", "--param", "a:date"),
        "unknown_type",
    ),
    "a default of nothing": (
        ("shop", "x", "--url", "https://a.example/x", "--default", "a=1"),
        "unknown_parameter",
    ),
    "a default of another type": (
        *(("shop", "x", "--url", "https://a.example/x", "--param", "a:integer"),),
        None,
    ),
}


@pytest.mark.parametrize(("options", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_invalid_operations_are_refused_and_nothing_is_written(bonobot, options, code):
    more = ("--default", "a=x") if "a:integer" in options else ()
    result = bonobot("mcp", "add-operation", *options, *more, "--description", "x", "--json")
    assert result.status == 1
    assert code in (None, result.error["code"])
    assert not Server.objects.exists()
