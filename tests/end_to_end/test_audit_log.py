"""The audit log in a browser: calls of a turn unfold, and the live tail follows new calls."""

from collections.abc import Iterator

import pytest
from django.db.models import QuerySet
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from bonobot.ledger.writer.writer_thread import get_writer
from tests import factories
from tests.agents.admin.test_audit import create_approved_call, create_call
from tests.browser import DESKTOP, PHONE, open_context
from tests.end_to_end.accounts import create_member, sign_in

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
AUDIT = "/admin/audit-log/"


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def ada(acme: Organization, live_server: LiveServer, module_browser: Browser) -> Iterator[Page]:
    """The browser of an auditor, signed in."""
    with open_context(module_browser, live_server.url) as page:
        sign_in(page, create_member(acme, Role.AUDITOR), acme, live_server.url)
        yield page
    get_writer().close()


def create_turn(acme: Organization, *tools: str) -> AuditRow:
    turn = create_call(acme, event_type="model", tool_name="")
    for name in tools:
        create_call(acme, parent_id=turn.pk, tool_name=name)
    return turn


def test_the_calls_of_a_turn_unfold_by_click_and_by_keyboard(ada: Page, acme: Organization) -> None:
    create_turn(acme, "buy", "sell", "hold")
    ada.goto(AUDIT)
    toggle = ada.get_by_role("button", name="3 calls")
    child = ada.locator("[data-entry]").filter(has_text="sell").first
    expect(child).to_be_hidden()
    toggle.click()
    expect(toggle).to_have_attribute("aria-expanded", "true")
    expect(child).to_be_visible()
    toggle.press("Enter")
    expect(child).to_be_hidden()
    ada.locator("body").press("Escape")
    ada.evaluate("document.activeElement.blur()")
    ada.keyboard.press("j")
    ada.keyboard.press("ArrowRight")
    expect(child).to_be_visible()
    expect(toggle).to_be_focused()
    ada.keyboard.press("ArrowLeft")
    expect(child).to_be_hidden()
    toggle.click()
    child.click()
    expect(ada.locator("[data-panel]").get_by_role("heading").first).to_contain_text("sell")
    ada.reload()
    expect(child).to_be_visible()


def send_audit_change(page: Page) -> None:
    """Announce a change as the stream of live updates does."""
    page.evaluate(
        "document.dispatchEvent(new CustomEvent('bonobot:change',"
        " {detail: {topic: 'audit', first: false}}))"
    )


def test_the_live_tail_adds_calls_to_the_turn_that_is_listed(ada: Page, acme: Organization) -> None:
    turn = create_turn(acme, "buy", "sell")
    ada.goto(AUDIT)
    ada.get_by_role("button", name="2 calls").click()
    ada.get_by_role("switch", name="Live tail").click()
    expect(ada.locator("[data-audit-summary=legend]")).to_contain_text("2 calls")
    other = create_turn(acme, "alone")
    create_call(acme, parent_id=turn.pk, tool_name="hold")
    send_audit_change(ada)
    expect(ada.locator("[data-audit-summary=legend]")).to_contain_text("4 calls")
    expect(ada.locator("[data-histogram] title", has_text="4 succeeded")).to_have_count(1)
    expect(ada.get_by_role("button", name="3 calls")).to_have_attribute("aria-expanded", "true")
    expect(ada.locator("tbody tr").first).to_contain_text("3 calls")
    expect(ada.locator("[data-entry]").filter(has_text="hold").first).to_be_visible()
    create_call(acme, parent_id=other.pk, tool_name="second")
    send_audit_change(ada)
    expect(ada.get_by_role("button", name="2 calls")).to_have_attribute("aria-expanded", "false")
    expect(ada.locator("[data-entry]").filter(has_text="alone").first).to_be_hidden()
    assert ada.locator("[data-turn-head]").count() == 2


@pytest.mark.whole
@pytest.mark.parametrize("language", ["en", "de"])
def test_the_outcome_of_a_folded_turn_is_whole(
    ada: Page, acme: Organization, language: str
) -> None:
    turn = create_turn(acme, "buy")
    request = create_approved_call(acme)[0]
    rows: QuerySet[AuditRow] = QuerySet(model=AuditRow)
    rows.filter(pk=request.pk).update(parent_id=turn.pk)
    ada.set_extra_http_headers({"Accept-Language": language})
    ada.set_viewport_size({"width": 1440, "height": 900})
    ada.goto(AUDIT)
    outcome = ada.locator("[data-turn-head] .bb-outcome-cell")
    expect(outcome).to_contain_text("1/2")
    assert outcome.evaluate("cell => cell.scrollWidth <= cell.clientWidth")


@pytest.mark.whole
def test_the_fields_of_the_filter_stay_inside_their_menu(ada: Page, acme: Organization) -> None:
    create_turn(acme, "buy")
    ada.goto(AUDIT)
    ada.get_by_text("Add filter").click()
    menu = ada.locator("form.bb-filter").bounding_box()
    assert menu
    fields = ada.locator("form.bb-filter :is(input, select):visible")
    assert fields.count() > 10
    for field in fields.all():
        box = field.bounding_box()
        assert box
        assert menu["x"] <= box["x"]
        assert box["x"] + box["width"] <= menu["x"] + menu["width"], field.get_attribute("name")


@pytest.mark.whole
def test_the_filters_suggest_names_when_they_are_first_opened(
    ada: Page, acme: Organization
) -> None:
    factories.create_agent(acme, "helper")
    create_turn(acme, "buy")
    ada.goto(AUDIT)
    expect(ada.locator("datalist")).to_have_count(0)
    ada.get_by_text("Add filter").click()
    expect(ada.locator("#agent-names option")).to_have_attribute("value", "Helper")
    field = ada.get_by_label("Agent", exact=True)
    assert field.evaluate("field => field.list.options.length") == 1


@pytest.mark.whole
def test_filters_and_actions_are_folded_on_phones_beside_active_filters(
    ada: Page, acme: Organization
) -> None:
    create_turn(acme, "buy")
    ada.set_viewport_size(PHONE)
    ada.goto(f"{AUDIT}?kind=call&opened_at_period=7d")
    rows = ada.locator("[data-audit-rows]").bounding_box()
    assert rows
    assert rows["y"] < PHONE["height"] / 3
    button = ada.get_by_role("button", name="Filters 2")
    add_filter = ada.get_by_text("Add filter")
    ranges = ada.get_by_role("navigation", name="Time range")
    saved_filters = ada.get_by_text("Saved filters")
    for part in (add_filter, ranges, saved_filters):
        expect(part).to_be_hidden()
    active_filters = ada.locator(".bb-filter-chip:visible")
    expect(active_filters).to_contain_text(["Type Tool calls", "Time 7 days"])
    button.click()
    expect(button).to_have_attribute("aria-expanded", "true")
    for part in (add_filter, ranges, saved_filters):
        expect(part).to_be_visible()
    ada.set_viewport_size(DESKTOP)
    ada.reload()
    expect(ada.locator("[data-audit-unfold]")).to_be_hidden()
    expect(add_filter).to_be_visible()
