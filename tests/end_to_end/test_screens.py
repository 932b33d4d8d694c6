"""Every screen of the admin in a real browser, on a desktop and a phone, checked with axe-core."""

import re
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager

import pytest
from django.conf import settings
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from bonobot.accounts.roles import Role
from bonobot.ledger.writer.writer_thread import get_writer
from tests import admin_client, factories
from tests.browser import DESKTOP, PHONE, open_context, take_screenshot
from tests.parts import NODE
from tests.processes import Web
from tests.screens import ADDRESSES, Visit, create_objects, visit_pages

pytestmark = [pytest.mark.browser, pytest.mark.npm]

WEB_SETTINGS = {"BONOBOT_OAUTH": "on"}  # as for the test client that lists the pages
AXE = NODE / "node_modules" / "axe-core" / "axe.min.js"
WCAG = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
# Rules that depend on the width and the colors.
SHAPES = ("color-contrast", "target-size", "scrollable-region-focusable", "link-in-text-block")
# Style sheets aren't preloaded: only an experimental rule, which isn't run, needs them. Bars don't
# stick, because what scrolls below one isn't too small.
AXE_SCRIPT = """async ([context, only]) => {
  for (const one of document.querySelectorAll("*"))
    if (getComputedStyle(one).position === "sticky") one.style.position = "static";
  const report = await axe.run(context ?? document,
    {resultTypes: ["violations"], preload: {assets: ["media"]}, runOnly: only});
  return report.violations.filter((one) => ["serious", "critical"].includes(one.impact))
    .flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html.slice(0, 160)}`));
}"""


# Forms of servers that are also shown in the first run.
FORMS = {
    f"admin/servers/{name}.html" for name in ("add", "declare", "document", "paste", "presets")
}
# Pages that differ only in names and tabs: one page per template is checked.
TWINS = FORMS | {"admin/servers/preset.html", "admin/delete_confirmation.html"}
# The content of a page: the navigation is checked once.
CONTENT = {"include": [["main"]]}


def run_axe(
    page: Page,
    kind: str,
    values: tuple[str, ...],
    context: dict[str, list[list[str]]] | None = None,
) -> list[str]:
    """Return the serious violations on the page, or in a part of it."""
    only = {"type": kind, "values": list(values)}
    violations: list[str] = page.evaluate(AXE_SCRIPT, [context, only])
    return violations


def get_distinct(visits: Iterable[Visit], checked_elsewhere: Set[str]) -> Iterator[Visit]:
    """Yield the pages, without those that differ little from previous ones."""
    templates = set(checked_elsewhere)
    for visit in visits:
        if visit.is_page and visit.template not in templates:
            templates |= {visit.template} & TWINS
            yield visit


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
    with open_context(browser, base_url) as page:
        page.add_init_script(path=AXE)
        cookie = admin.client.cookies[settings.SESSION_COOKIE_NAME]
        page.context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": base_url}])

        def listen(message: ConsoleMessage) -> None:
            if message.type == "error":
                faults.append(f"{page.url} console: {message.text}")

        page.on("console", listen)
        for number, (name, path) in enumerate(pages):
            part = CONTENT if number else None
            page.set_viewport_size(DESKTOP)
            page.goto(path)
            faults += [f"{path} {fault}" for fault in run_axe(page, "tag", WCAG, part)]
            take_screenshot(page, f"{name}-desk")
            page.set_viewport_size(PHONE)
            page.evaluate("document.documentElement.classList.add('dark')")
            faults += [f"{path} phone {fault}" for fault in run_axe(page, "rule", SHAPES, part)]
            width = page.evaluate("document.documentElement.scrollWidth")
            faults += [f"{path} is {width} pixels wide"] if width > PHONE["width"] else []
            take_screenshot(page, f"{name}-phone")
        yield page
    get_writer().close()


def test_axe_finds_nothing_serious_on_lists_forms_and_the_palette(
    module_web: Web, module_browser: Browser
) -> None:
    """The screens of objects are checked in `test_screens_of_objects.py`."""
    faults: list[str] = []
    addresses = [(name, parameters) for name, parameters in ADDRESSES if not parameters]
    with open_screens(module_browser, module_web.url, addresses, faults) as page:
        page.emulate_media(color_scheme="dark")
        page.goto("/admin/mcp_servers/server/")
        assert page.evaluate("document.documentElement.classList.contains('dark')")
        page.keyboard.press("j")
        expect(page.locator("[data-reached]")).to_contain_text("web0")
        page.keyboard.press("Control+k")
        page.keyboard.type("kill sw")
        expect(page.get_by_role("option").first).to_contain_text("Kill switch")
        faults += [f"palette {fault}" for fault in run_axe(page, "tag", WCAG)]
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("/organization/kill-switch/"))
    assert not faults, "\n".join(faults)
