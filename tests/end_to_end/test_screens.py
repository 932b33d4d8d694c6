"""The screens of the admin in a real browser, on a desktop and a phone, checked with axe-core.

Each page is checked on a desktop, and in dark colors on a phone.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager

import pytest
from django.conf import settings
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from bonobot.accounts.roles import Role
from bonobot.ledger.writer.writer_thread import get_writer
from tests import admin_client, factories
from tests.axe import DARK_PHONE, DESK, WCAG, add_axe, check_views, run_axe
from tests.browser import DESKTOP, PHONE, open_context, take_screenshot
from tests.planted_violations import PLANTED, plant_violation
from tests.processes import Web
from tests.screens import ADDRESSES, Visit, create_objects, visit_pages

pytestmark = [pytest.mark.browser, pytest.mark.npm, pytest.mark.whole]

VIEWS = (DESK, DARK_PHONE)
WEB_SETTINGS = {"BONOBOT_OAUTH": "on"}  # as for the test client that lists the pages
# Screens with violations: lists, forms, and tables.
PLANTED_PATHS = (
    "/admin/mcp-servers/",
    "/admin/agents/add/",
    "/admin/tokens/add/",
    "/admin/audit-log/",
)
# The share of elements that aren't checked again.
CHECKED_SHARE_SCRIPT = """() => {
  const count = (element) => element.querySelectorAll("*").length + 1;
  const checked = checkedParts.reduce((sum, part) => sum + count(part), 0);
  return checked / count(document.documentElement);
}"""
# The width of a page, and where its content begins.
PLACE_SCRIPT = """() => [
  document.documentElement.scrollWidth,
  document.querySelector("main").getBoundingClientRect().top,
]"""
# Forms of servers that are also shown in the first run.
FORMS = {
    "admin/openapi/choose_document.html",
    "admin/openapi/declare_api.html",
    "admin/presets/gallery.html",
    "admin/server_imports/paste.html",
    "admin/servers/add_by_form.html",
    "admin/servers/add_by_url.html",
}
# Pages that differ only in names and tabs: one page per template is checked.
TWINS = FORMS | {"admin/presets/add_by_preset.html", "admin/delete_confirmation.html"}


def get_distinct(visits: Iterable[Visit], checked_elsewhere: Set[str]) -> Iterator[Visit]:
    """Yield the pages, without those that differ little from previous ones."""
    templates = set(checked_elsewhere)
    for visit in visits:
        if visit.is_page and visit.template not in templates:
            if visit.template in TWINS:
                templates.add(visit.template)
            yield visit


@contextmanager
def open_signed_in(
    browser: Browser, base_url: str, admin: admin_client.AdminClient
) -> Iterator[Page]:
    """Open a page with axe and the session of an administrator."""
    with open_context(browser, base_url) as page:
        add_axe(page)
        cookie = admin.client.cookies[settings.SESSION_COOKIE_NAME]
        page.context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": base_url}])
        yield page


@contextmanager
def open_screens(
    browser: Browser,
    base_url: str,
    addresses: Iterable[tuple[str, list[str]]],
    faults: list[str],
    *,
    checked_elsewhere: Set[str] = frozenset(),
) -> Iterator[Page]:
    """Check the pages of these addresses, add their faults to a list, and yield a page."""
    acme = factories.create_organization()
    admin = admin_client.sign_in(acme, Role.OWNER)
    admin.user.is_superuser = True
    admin.user.save()
    visits = visit_pages(admin.client, create_objects(acme), addresses)
    pages = [(visit.name, visit.path) for visit in get_distinct(visits, checked_elsewhere)]
    assert len(pages) > 30
    with open_signed_in(browser, base_url, admin) as page:

        def listen(message: ConsoleMessage) -> None:
            if message.type == "error":
                faults.append(f"{page.url} console: {message.text}")

        page.on("console", listen)
        for name, path in pages:
            page.set_viewport_size(DESKTOP)
            page.goto(path)
            for view, violations in check_views(page, *VIEWS):
                faults += [f"{path} {view.name} {violation}" for violation in violations]
                take_screenshot(page, f"{name}-{view.name}", restore=False)
            width, top = page.evaluate(PLACE_SCRIPT)
            faults += [f"{path} is {width} pixels wide"] if width > PHONE["width"] else []
            faults += [f"{path} begins at {top} pixels"] if top > PHONE["height"] / 2 else []
        yield page
    get_writer().close()


def test_axe_finds_nothing_serious_on_lists_forms_and_the_palette(
    module_web: Web, module_browser: Browser
) -> None:
    """The screens of objects are checked in `test_screens_of_objects.py`."""
    faults: list[str] = []
    addresses = [(name, parameters) for name, parameters in ADDRESSES if not parameters]
    with open_screens(module_browser, module_web.url, addresses, faults) as page:
        page.set_viewport_size(DESKTOP)
        page.emulate_media(color_scheme="dark")
        page.goto("/admin/mcp-servers/")
        assert page.evaluate("document.documentElement.classList.contains('dark')")
        page.keyboard.press("j")
        expect(page.locator("[data-reached]")).to_contain_text("web0")
        page.keyboard.press("Control+k")
        page.keyboard.type("kill sw")
        expect(page.get_by_role("option").first).to_contain_text("Kill switch")
        faults += [f"palette {violation}" for violation in run_axe(page, "tag", WCAG)]
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("/organization/kill-switch/"))
    assert not faults, "\n".join(faults)


def test_axe_finds_each_planted_violation_on_screens_that_were_checked_before(
    module_web: Web, module_browser: Browser
) -> None:
    acme = factories.create_organization("planted")
    admin = admin_client.sign_in(acme, Role.OWNER)
    admin_client.create_web_server(acme, "web")
    missed, planted = [], Counter[tuple[str, str]]()
    with open_signed_in(module_browser, module_web.url, admin) as page:
        for path in PLANTED_PATHS:
            page.set_viewport_size(DESKTOP)
            page.goto(path)
            assert [violations for _, violations in check_views(page, DESK, DARK_PHONE)] == [[], []]
        for path in PLANTED_PATHS:
            page.set_viewport_size(DESKTOP)
            page.goto(path)
            assert [violations for _, violations in check_views(page, DESK)] == [[]]
            assert page.evaluate(CHECKED_SHARE_SCRIPT) > 0.8, path
            page.context.set_offline(True)  # a live update would repair what is planted
            for view in (DESK, DARK_PHONE):
                rules = [
                    rule
                    for rule, in_view, change in PLANTED
                    if in_view is view and plant_violation(page, change)
                ]
                ((_, violations),) = check_views(page, view)
                found = {violation.partition(":")[0] for violation in violations}
                missed += [f"{path} {view.name} {rule}" for rule in rules if rule not in found]
                planted.update((view.name, rule) for rule in rules)
            page.context.set_offline(False)
    assert not missed, "\n".join(missed)
    assert len(planted) == len(PLANTED)
    assert min(planted.values()) > 1, planted
    get_writer().close()
