"""On every screen: leaving a changed form asks for confirmation, and everything has a key."""

import re
from collections.abc import Iterator
from itertools import product
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from playwright.sync_api import Browser, Dialog, Page, expect
from pytest_django.live_server_helper import LiveServer

from agents.models import Agent, Budget
from agents.policies.services import PolicySpec, set_policy
from bonobot.accounts.admin_base.form_versions import parse_forms
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.models import Server
from tests import admin_client, factories
from tests.browser import open_context
from tests.end_to_end.accounts import create_member, sign_in
from tests.wait import eventually

FILE = "d = new DataTransfer(); d.items.add(new File(['x'], 'a.png')); d"
PASTE = "(form, d) => form.dispatchEvent(new ClipboardEvent('paste', {clipboardData: d}))"
pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True), pytest.mark.whole]


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def olga(acme: Organization, live_server: LiveServer, module_browser: Browser) -> Iterator[Page]:
    """The browser of an owner, signed in."""
    with open_context(module_browser, live_server.url) as page:
        sign_in(page, create_member(acme, Role.OWNER), acme, live_server.url)
        yield page
    get_writer().close()


class Guard:
    """Answers and counts the dialogs of a page that is left."""

    def __init__(self, page: Page) -> None:
        self.dialogs = 0
        self.stays = True
        page.on("dialog", self.handle)

    def handle(self, dialog: Dialog) -> None:
        assert dialog.type == "beforeunload"
        self.dialogs += 1
        if self.stays:
            dialog.dismiss()
        else:
            dialog.accept()


@pytest.mark.parametrize("width", [1440, 375], ids=["desktop", "phone"])
def test_the_message_field_stays_when_a_session_starts(
    olga: Page, acme: Organization, width: int
) -> None:
    agent = factories.create_agent(acme)
    olga.set_viewport_size({"width": width, "height": 800})
    olga.goto(f"/admin/agents/{agent.pk}/change/")
    composer = olga.locator(".bb-composer")
    place = composer.bounding_box()
    assert place
    assert place["y"] + place["height"] > 700  # at the bottom
    composer.get_by_role("textbox").fill("What time is it?")
    composer.get_by_role("textbox").press("Enter")
    expect(olga.locator("[data-steps]")).to_be_attached()
    assert composer.bounding_box() == place


def test_the_search_key_leads_to_the_search_field(olga: Page, acme: Organization) -> None:
    server = admin_client.create_web_server(acme)
    for path in (f"{server.pk}/definitions/", "add/preset/"):
        olga.goto(f"/admin/mcp-servers/{path}")
        olga.locator("h2, h3").first.click()
        olga.keyboard.press("/")
        search = olga.locator("main .bb-search input")
        expect(search).to_be_focused()
        expect(search).to_have_value("")
        olga.keyboard.press("/")
        expect(search).to_have_value("/")


def leave_page(page: Page) -> None:
    """Click the link to the sessions without waiting, so that the page can show its dialog."""
    page.locator("#nav-sidebar").get_by_role("link", name="Sessions", exact=True).click(
        no_wait_after=True
    )


def test_a_pasted_file_is_attached_but_not_the_picture_of_a_pasted_text(
    olga: Page, acme: Organization
) -> None:
    olga.goto(f"/admin/agents/{factories.create_agent(acme).pk}/change/")
    composer = olga.locator(".bb-composer")
    files = composer.locator("[data-file-list]")
    copied = olga.evaluate_handle(FILE)
    composer.evaluate(PASTE, copied)
    expect(files).to_contain_text("a.png")
    composer.get_by_role("button", name="Remove file").click()
    # As of a file manager: the file and its name.
    copied.evaluate("d => d.setData('text/plain', 'a.png')")
    composer.evaluate(PASTE, copied)
    expect(files).to_contain_text("a.png")
    composer.get_by_role("button", name="Remove file").click()
    copied.evaluate("d => d.setData('text/html', '<table></table>')")
    composer.evaluate(PASTE, copied)
    expect(files).to_be_empty()


@pytest.mark.parametrize("form", ["ours", "the theme's"])
def test_leaving_a_changed_form_asks_and_submitting_it_doesnt(
    olga: Page, acme: Organization, form: str
) -> None:
    agent = factories.create_agent(acme)
    budget = "/admin/budgets/add/"
    own_form = f"/admin/agents/{agent.pk}/configuration/"
    guard = Guard(olga)
    olga.goto(own_form if form == "ours" else budget)
    field = olga.get_by_label("Description") if form == "ours" else olga.get_by_label("Limit")
    before = field.input_value()

    field.fill("7")
    leave_page(olga)
    olga.wait_for_function("() => true")
    assert guard.dialogs == 1
    expect(field).to_have_value("7")

    field.fill(before)
    leave_page(olga)
    expect(olga).to_have_url(re.compile("/admin/sessions/"))
    assert guard.dialogs == 1  # the original value was restored

    olga.goto(own_form if form == "ours" else budget)
    field.fill("7")
    button = "Save changes" if form == "ours" else "Create budget"
    olga.get_by_role("button", name=button, exact=True).click()
    expect(olga.locator("body")).to_contain_text(re.compile("Saved|was created|saved"))
    assert guard.dialogs == 1
    if form == "ours":
        assert Agent.objects.get(pk=agent.pk).description == "7"


def test_a_form_can_be_submitted_after_staying_on_the_page(olga: Page, acme: Organization) -> None:
    server = admin_client.create_web_server(acme)
    guard = Guard(olga)
    olga.goto(f"/admin/mcp-servers/{server.pk}/configuration/")
    olga.locator("summary", has_text="Description").click()
    olga.get_by_label("Description").fill("Weather")
    with olga.expect_event("dialog"):
        olga.get_by_role("switch").first.click(no_wait_after=True)  # another form of the page
    expect(olga.get_by_label("Description")).to_have_value("Weather")
    assert guard.dialogs == 1
    guard.stays = False
    olga.get_by_role("switch").first.click()
    expect(olga.locator(".bb-head-actions")).to_contain_text("Disabled")
    assert guard.dialogs == 2
    assert not Server.objects.get(pk=server.pk).enabled


def test_the_keyboard_reaches_lists_and_the_command_palette(olga: Page, acme: Organization) -> None:
    for number in range(3):
        admin_client.create_web_server(acme, f"web{number}")
    olga.goto("/admin/mcp-servers/")
    olga.keyboard.press("Tab")
    skip = olga.get_by_role("link", name="Skip to content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    olga.keyboard.press("Enter")
    expect(olga.locator("#content")).to_be_focused()

    for key, reached in (("j", "web0"), ("j", "web1"), ("j", "web2"), ("k", "web1")):
        olga.keyboard.press(key)
        expect(olga.locator("[data-reached]")).to_contain_text(reached)
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert olga.evaluate(outline) != "none"  # the focus is visible
    olga.keyboard.press("Enter")
    expect(olga.get_by_role("heading", name="web1", exact=True)).to_be_visible()

    menu = olga.locator("main .bb-menu > summary")
    menu.focus()
    olga.keyboard.press("Enter")
    expect(olga.get_by_role("link", name="Save as preset")).to_be_visible()
    olga.keyboard.press("Escape")
    expect(olga.get_by_role("link", name="Save as preset")).to_be_hidden()
    expect(menu).to_be_focused()
    olga.keyboard.press("Enter")
    expect(olga.get_by_role("link", name="Save as preset")).to_be_visible()
    olga.keyboard.press("Shift+Tab")
    expect(olga.get_by_role("link", name="Save as preset")).to_be_hidden()

    olga.keyboard.press("Control+k")
    olga.keyboard.type("web2")
    expect(olga.get_by_role("option").first).to_contain_text("web2")
    expect(olga.get_by_role("option").last).to_contain_text("Search documentation")
    olga.keyboard.press("Escape")
    expect(olga.get_by_role("combobox", name="Go to")).to_be_hidden()
    olga.keyboard.press("Control+k")
    olga.keyboard.type("web2")
    olga.keyboard.press("Enter")  # opens what was typed, even before its results are shown
    expect(olga.get_by_role("heading", name="web2", exact=True)).to_be_visible()


def test_the_keyboard_opens_and_closes_the_filters_of_a_list(
    olga: Page, acme: Organization
) -> None:
    admin_client.create_web_server(acme)
    olga.goto("/admin/mcp-servers/")
    filters = olga.get_by_role("button", name="Filters")
    olga.get_by_role("navigation", name="Servers", exact=True).get_by_role("link").last.focus()
    olga.keyboard.press("Tab")
    expect(filters).to_be_focused()
    olga.keyboard.press("Enter")
    panel = olga.locator("#changelist-filter")
    expect(panel).to_be_visible()
    expect(panel.locator(":focus")).to_have_count(1)
    for _ in range(12):  # more than its controls
        olga.keyboard.press("Tab")
        expect(panel.locator(":focus")).to_have_count(1)
    olga.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(filters).to_be_focused()


def test_the_keyboard_reaches_the_user_menu_and_signs_out(olga: Page) -> None:
    olga.goto("/admin/")
    menu = olga.locator(".bb-user > summary")
    menu.focus()
    olga.keyboard.press("Enter")
    expect(olga.get_by_role("button", name="Sign out")).to_be_visible()
    olga.keyboard.press("Tab")
    expect(olga.get_by_role("link", name="Your profile")).to_be_focused()
    olga.keyboard.press("Escape")
    expect(olga.get_by_role("button", name="Sign out")).to_be_hidden()
    expect(menu).to_be_focused()


def test_a_failed_connection_is_retried_on_the_overview(olga: Page, acme: Organization) -> None:
    server = admin_client.create_web_server(acme)  # nothing listens there
    olga.goto(f"/admin/mcp-servers/{server.pk}/change/?connect=1")
    state = olga.locator(f'[data-part="state-{server.pk}"]')
    expect(olga.get_by_role("alert")).to_contain_text("server_unreachable")
    expect(state).to_contain_text("failed")
    before = server.checks.count()
    olga.get_by_role("link", name="Retry").click()
    eventually(lambda: server.checks.count() > before)
    expect(olga).to_have_url(re.compile("connected=1"))
    expect(olga.get_by_role("alert")).to_contain_text("server_unreachable")
    olga.get_by_role("link", name="Edit configuration").click()
    expect(olga).to_have_url(re.compile("/configuration/"))


def test_typed_text_is_restored_after_the_session_expired(olga: Page) -> None:
    olga.goto("/admin/budgets/add/")
    olga.get_by_label("Limit").fill("1200")
    olga.get_by_label("Period").select_option("day")
    olga.context.clear_cookies(name=settings.SESSION_COOKIE_NAME)
    olga.get_by_role("button", name="Create budget").click()
    expect(olga.get_by_text("Your session expired. What you typed is kept")).to_be_visible()
    olga.locator("[name=username]").fill(User.objects.get().username)
    olga.locator("[name=password]").fill("pw-for-tests")
    olga.locator("#login-form button[type=submit]").click()
    olga.wait_for_url("**/admin/budgets/add/")
    expect(olga.get_by_role("status").filter(has_text="was restored")).to_be_visible()
    expect(olga.get_by_label("Limit")).to_have_value("1200")
    expect(olga.get_by_label("Period")).to_have_value("day")
    olga.get_by_role("button", name="Discard").click()
    expect(olga.get_by_label("Limit")).to_have_value("")
    expect(olga.get_by_label("Period")).to_have_value("month")
    olga.get_by_label("Limit").fill("1300")
    olga.once("dialog", lambda dialog: dialog.accept())  # there are unsaved changes
    olga.locator("#logout-form").evaluate("form => form.requestSubmit()")
    expect(olga.get_by_role("link", name="Sign in again")).to_be_visible()
    assert olga.evaluate("sessionStorage.getItem('bonobot-draft')") is None


def test_typed_text_is_restored_after_the_form_expired_and_not_after_it_was_saved(
    olga: Page,
) -> None:
    olga.goto("/admin/budgets/add/")
    olga.get_by_label("Limit").fill("1200")
    olga.context.clear_cookies(name=settings.CSRF_COOKIE_NAME)
    olga.get_by_role("button", name="Create budget").click()
    olga.get_by_role("link", name="Return to the form").click()
    expect(
        olga.get_by_role("status").filter(has_text="What you typed was restored.")
    ).to_be_visible()
    expect(olga.get_by_label("Limit")).to_have_value("1200")
    olga.get_by_role("button", name="Create budget").click()
    expect(olga.get_by_role("link", name="1,200 tokens per month")).to_be_visible()
    olga.goto("/admin/budgets/add/")
    expect(olga.get_by_label("Limit")).to_have_value("")
    assert Budget.objects.get().limit == 1200


@pytest.mark.parametrize("width", [1440, 375], ids=["desktop", "phone"])
def test_the_value_of_a_conflicting_edit_can_be_used_or_replaced(
    olga: Page, acme: Organization, width: int
) -> None:
    helper = factories.create_agent(acme)
    olga.set_viewport_size({"width": width, "height": 800})
    olga.goto(admin_client.build_url("agents_agent_configuration", helper.pk))
    description = olga.get_by_label("Description")
    other = admin_client.sign_in(acme, Role.OPERATOR)
    form = parse_forms(other.get("agents_agent_configuration", helper.pk), urlsplit(olga.url).path)
    saved = {name: control.values for name, control in form[0].controls.items()}
    other.post("agents_agent_configuration", helper.pk, **saved | {"description": "Theirs"})
    description.fill("Mine")
    olga.get_by_role("button", name="Save changes").click()

    note = olga.locator(".bb-field .bb-conflict")
    expect(note).to_contain_text("changed this to Theirs")
    expect(note).to_be_in_viewport(ratio=1)
    expect(description).to_have_value("Mine")
    expect(description).to_have_accessible_description(re.compile("changed this to Theirs"))
    note.get_by_role("button", name="Use this value").click()
    expect(description).to_have_value("Theirs")
    note.get_by_role("button", name="Use my value").click()
    expect(description).to_have_value("Mine")
    # The bar stays, though the fields are as the page showed them.
    olga.get_by_role("button", name="Save changes").click()
    expect(olga.locator(".bb-conflict")).to_have_count(0)
    assert Agent.objects.get().description == "Mine"


COVERED_BY_TOASTS = """() => {
  const list = document.querySelector("[data-toasts]").getBoundingClientRect();
  return [...document.querySelectorAll(".bb-tab, .bb-primary")].filter((element) => {
    const box = element.getBoundingClientRect();
    return box.height && box.top < innerHeight && box.left < list.right && list.left < box.right
      && box.top < list.bottom && list.top < box.bottom;
  }).map((element) => element.textContent.trim());
}"""


COVERED_PANEL_BUTTONS = """() => {
  const list = document.querySelector("[data-toasts]").getBoundingClientRect();
  return [...document.querySelectorAll(".bb-sidepanel :is(a, button)")].filter((element) => {
    const box = element.getBoundingClientRect();
    return box.height && box.top < innerHeight && box.left < list.right && list.left < box.right
      && box.top < list.bottom && list.top < box.bottom;
  }).map((element) => element.textContent.trim());
}"""


def test_messages_cover_neither_tabs_nor_primary_buttons(olga: Page, acme: Organization) -> None:
    agent = factories.create_agent(acme)
    for width, page_name in product((1440, 375), ("servers", "change", "configuration")):
        olga.set_viewport_size({"width": width, "height": 800})
        olga.goto(f"/admin/agents/{agent.pk}/{page_name}/")
        for text in ("The server was attached.", "A long text " * 12):
            olga.evaluate(
                "text => document.dispatchEvent(new CustomEvent('bonobot:toast', {detail: text}))",
                text,
            )
            expect(olga.locator("[data-toasts] .bb-notice").last).to_be_in_viewport()
            assert olga.evaluate(COVERED_BY_TOASTS) == [], (page_name, width)


def test_a_long_message_ends_with_an_ellipsis_until_it_is_read(olga: Page) -> None:
    olga.goto("/admin/agents/")
    olga.evaluate(
        "text => document.dispatchEvent(new CustomEvent('bonobot:toast', {detail: text}))",
        "A long text " * 99,
    )
    toast = olga.locator(".bb-notice")
    text = toast.locator(".bb-notice-text")
    height = text.bounding_box()["height"]
    assert height < text.evaluate("element => element.scrollHeight")
    assert text.evaluate("element => getComputedStyle(element).webkitLineClamp") == "8"
    toast.hover()
    assert text.bounding_box()["height"] > height
    toast.get_by_role("button", name="Close").focus()
    olga.mouse.move(0, 0)
    assert text.bounding_box()["height"] > height


def test_at_most_three_messages_are_visible_beside_an_open_panel_and_can_be_closed(
    olga: Page, acme: Organization
) -> None:
    agent = factories.create_agent(acme)
    set_policy(factories.build_administrator(acme), agent, PolicySpec("allowlist"))
    for width in (1440, 375):
        olga.set_viewport_size({"width": width, "height": 800})
        olga.goto("/admin/audit-log/")
        olga.locator("[data-panel-url]").first.click()
        panel = olga.locator(".bb-sidepanel")
        expect(panel).to_be_visible()
        for number in range(5):
            olga.evaluate(
                "text => document.dispatchEvent(new CustomEvent('bonobot:toast', {detail: text}))",
                f"Message {number}",
            )
        toasts, messages = olga.get_by_role("region", name="Messages"), olga.locator(".bb-notice")
        expect(messages.locator("visible=true")).to_have_text(
            [re.compile(f"Message {number}") for number in (2, 3, 4)]
        )
        expect(toasts).to_contain_text("2 more messages")
        expect(toasts).to_have_attribute("aria-live", "polite")
        assert olga.evaluate(COVERED_PANEL_BUTTONS) == [], width
        if width == 1440:
            boxes = toasts.bounding_box(), panel.bounding_box()
            assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
        messages.locator("visible=true").last.get_by_role("button", name="Close").click()
        expect(toasts).to_contain_text("1 more message")
        messages.locator("visible=true").last.get_by_role("button", name="Close").focus()
        olga.keyboard.press("Escape")
        expect(messages.locator("visible=true")).to_have_count(3)
        expect(toasts).not_to_contain_text("more message")


@pytest.mark.parametrize(
    ("address", "label", "typed"),
    [
        ("/admin/agents/add/", "Name", "description"),
        ("/admin/mcp-servers/add/", "Name", "url"),
        ("/admin/budgets/add/", "Limit", "warn_at"),
        ("/admin/tokens/add/", "Name", ""),
    ],
    ids=["agent", "server", "budget", "token"],
)
def test_the_summary_of_errors_has_the_focus_and_links_to_the_fields(
    olga: Page, acme: Organization, address: str, label: str, typed: str
) -> None:
    factories.create_agent(acme)
    olga.goto(address)
    if typed:
        olga.locator(f"#content [name={typed}]").first.fill("77")
    with olga.expect_navigation():
        olga.evaluate(
            """() => {
              const token = document.querySelector("#content input[name=csrfmiddlewaretoken]");
              const { form } = token;
              form.noValidate = true;
              form.requestSubmit();
            }"""
        )
    summary = olga.locator("[data-error-summary]")
    expect(summary).to_be_focused()
    summary.get_by_role("link", name=label).click()
    field = olga.locator("[aria-invalid=true]").first
    expect(field).to_be_focused()
    described = field.get_attribute("aria-describedby") or ""
    assert any("error" in part for part in described.split())
    if typed:
        expect(olga.locator(f"#content [name={typed}]").first).to_have_value("77")


def test_a_budget_is_previewed_while_its_limit_is_typed(olga: Page, acme: Organization) -> None:
    olga.goto("/admin/budgets/add/")
    forecast = olga.locator("[data-part=forecast]")
    expect(forecast).to_contain_text("All model turns of the organization")
    expect(forecast).not_to_contain_text("a notification")
    olga.get_by_label("Unit").select_option("calls")
    olga.get_by_label("Limit").fill("200")
    expect(forecast).to_contain_text("160 calls: a notification")
    assert not Budget.objects.exists(), "nothing is saved"


def test_the_owner_of_a_budget_is_searched_among_many(olga: Page, acme: Organization) -> None:
    for n in range(12):
        factories.create_agent(acme, f"agent-{n}")
    wanted = factories.create_agent(acme, "support")
    olga.goto("/admin/budgets/add/")
    separately = olga.get_by_label("Count each session separately")
    expect(separately).to_be_hidden()
    search = olga.get_by_label("Search: Applies to")
    owner = olga.locator("select[name=owner_key]")
    # One field shows the choice; the list is there only while it is in use.
    expect(search).to_have_value("Entire organization")
    expect(owner).to_be_hidden()
    search.fill("sup")
    expect(owner).to_be_visible()
    expect(owner.locator("option")).to_have_count(1)
    search.press("Enter")
    expect(owner).to_have_value(f"agent:{wanted.pk}")
    expect(owner).to_be_hidden()
    expect(search).to_have_value("Support")
    expect(owner.locator("option")).to_have_count(14)
    expect(separately).to_be_visible()
    expect(olga.locator("[data-part=forecast]")).to_contain_text("model turns of the agent")
    search.fill("nothing like this")
    search.fill("")
    expect(owner).to_have_value(f"agent:{wanted.pk}")
