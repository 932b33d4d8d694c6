"""An administrator declares HTTP operations in a real browser, and a real API is asked."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from bonobot.tenancy.models import Membership, User
from bonobot.tenancy.roles import Role
from tests.agents import casting
from tests.servers.shop import Shop, open_shop

pytestmark = [pytest.mark.browser]
PATIENCE_MS = 60_000


@pytest.fixture
def shop() -> Iterator[Shop]:
    with open_shop() as found:
        yield found


@pytest.fixture
def anna(transactional_db: None, page: Page) -> Iterator[Page]:
    """The platform administrator's browser; an error in its console fails the test."""
    boss = User.objects.create_superuser("anna", password="pw-for-tests")
    Membership.objects.create(organization=casting.organization(), user=boss, role=Role.OWNER)
    faults: list[str] = []
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    page.goto("/")
    page.get_by_label("Username").fill("anna")
    page.get_by_label("Password").fill("pw-for-tests")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Acme")).to_be_visible()
    yield page
    assert not faults


def add_parameter(page: Page, **said: str) -> Locator:
    page.get_by_role("button", name="Add a parameter").click()
    row = page.get_by_role("group", name="Parameter").last
    row.get_by_label("Name", exact=True).fill(said["name"])
    row.get_by_label("Where it goes").select_option(said["place"])
    row.get_by_label("Type").select_option(said.get("type", "string"))
    row.get_by_label("Required").select_option(said.get("required", ""))
    row.get_by_label("What it means").fill(said.get("description", ""))
    row.get_by_label("Default").fill(said.get("default", ""))
    return row


def approve_what_waits(page: Page) -> None:
    page.get_by_role("link", name="Read and approve").first.click(timeout=PATIENCE_MS)
    page.get_by_role("button", name="Approve this one").click()
    expect(page.locator("body")).to_contain_text("approved")


def call(page: Page, arguments: dict[str, object]) -> None:
    page.get_by_role("link", name="Try it").first.click()
    page.get_by_role("radio", name="JSON").check()
    page.locator("textarea[name=arguments]").fill(json.dumps(arguments))
    page.get_by_role("button", name="Call").click()
    expect(page.locator("#result")).to_be_visible(timeout=PATIENCE_MS)


def test_an_operation_is_declared_previewed_approved_called_and_changed(
    anna: Page, shop: Shop
) -> None:
    anna.goto("/admin/mcp_servers/server/add/operations/")
    anna.locator("#id_name").fill("shop")
    anna.get_by_label("Base address").fill(f"{shop.url}/v1")
    anna.get_by_label("Allow a private or loopback address").check()
    anna.get_by_label("Sign-in").select_option("bearer_token")
    anna.get_by_label("Bearer token").fill("sesame-sesame")
    anna.get_by_label("Name of the tool").fill("get_order")
    anna.get_by_label("What it does").fill("Look up an order by its number.")
    anna.locator("#id_op-path").fill("/orders/{id}")
    add_parameter(anna, name="id", place="path", type="integer", description="The order")
    add_parameter(anna, name="limit", place="query", type="integer", default="20")
    sent = anna.locator("[data-part=sent]")
    expect(sent).to_contain_text(f"GET {shop.url}/v1/orders/1?limit=20")
    anna.locator("#id_op-path").fill("https://{shop}.example.com/orders")
    expect(sent).to_contain_text("which host is asked")
    anna.locator("#id_op-path").fill("/orders/{id}")
    expect(sent).to_contain_text("/v1/orders/1?limit=20")
    assert shop.arrived == []
    anna.get_by_role("button", name="Add and connect").click()
    approve_what_waits(anna)
    call(anna, {"id": 7})
    expect(anna.locator("#result")).to_contain_text("open")
    [asked] = shop.arrived
    assert (asked.path, asked.headers["Authorization"]) == (
        "/v1/orders/7?limit=20",
        "Bearer sesame-sesame",
    )

    anna.get_by_role("link", name="Configuration").click()
    row = anna.locator("tr", has_text="get_order")
    expect(row).to_contain_text("approved")
    row.get_by_role("link", name="Change").click()
    expect(sent).to_contain_text("/v1/orders/1?limit=20")
    anna.get_by_label("What it does").fill("Look up an order, with its items.")
    anna.get_by_role("button", name="Save").click()
    anna.get_by_role("link", name="Read and approve").first.click(timeout=PATIENCE_MS)
    expect(anna.locator("body")).to_contain_text("by its number")
    expect(anna.locator("body")).to_contain_text("with its items")

    anna.get_by_role("link", name="Configuration").click()
    anna.get_by_role("link", name="Add an operation").click()
    anna.get_by_label("Name of the tool").fill("add_order")
    anna.get_by_label("What it does").fill("Order something.")
    anna.locator("#id_op-method").select_option("POST")
    anna.locator("#id_op-path").fill("/orders")
    add_parameter(anna, name="customer.email", place="body", required="1")
    expect(sent).to_contain_text('"email": "EMAIL"')
    anna.get_by_role("button", name="Save").click()
    # The page says it, and what goes on, too, while that is still there.
    expect(anna.get_by_role("link", name="Read and approve").first).to_be_visible(
        timeout=PATIENCE_MS
    )
    anna.get_by_role("link", name="Configuration").click()
    anna.locator("tr", has_text="add_order").get_by_role("link", name="Remove").click()
    anna.get_by_role("button", name="Remove the operation").click()
    anna.get_by_role("link", name="Configuration").click()
    expect(anna.locator("body")).not_to_contain_text("add_order")
    assert len(shop.arrived) == 1
