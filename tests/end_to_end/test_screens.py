"""Every screen of the admin in a real browser, on a desk and on a phone, judged by axe-core."""

import re
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager

import pytest
from django.conf import settings
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from bonobot.accounts.roles import Role
from bonobot.ledger.writer.writer_thread import get_writer
from tests import admin_client, factories
from tests.browser import DESK, PHONE, open_context, picture
from tests.parts import NODE
from tests.processes import Web
from tests.screens import ADDRESSES, Visit, fill, visit_pages

pytestmark = [pytest.mark.browser, pytest.mark.npm]

WEB_SETTINGS = {"BONOBOT_OAUTH": "on"}  # the test client that lists the pages has it on, too
AXE = NODE / "node_modules" / "axe-core" / "axe.min.js"
WCAG = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
# What a narrower window and other colours can change; the rest is the same page.
SHAPES = ("color-contrast", "target-size", "scrollable-region-focusable", "link-in-text-block")
# Style sheets aren't fetched again: the one rule that reads them is experimental, so it isn't run.
JUDGE = """async ([context, only]) => (await axe.run(context ?? document,
    {resultTypes: ["violations"], preload: {assets: ["media"]}, runOnly: only}))
  .violations.filter((one) => ["serious", "critical"].includes(one.impact))
  .flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html.slice(0, 160)}`))"""


# Forms of servers that lists, agents and the first run show alike.
FORMS = {
    f"admin/servers/{name}.html" for name in ("add", "declare", "document", "paste", "presets")
}
# Pages that differ in names and tabs alone: one of each template is judged.
TWINS = FORMS | {"admin/servers/preset.html", "admin/delete_confirmation.html"}
# What differs between two pages of the admin: the navigation is judged once.
CONTENT = {"include": [["main"]]}


def judged(
    page: Page,
    kind: str,
    values: tuple[str, ...],
    context: dict[str, list[list[str]]] | None = None,
) -> list[str]:
    """Return what axe-core finds serious on the page, or in a part of it."""
    only = {"type": kind, "values": list(values)}
    found: list[str] = page.evaluate(JUDGE, [context, only])
    return found


def get_distinct(visits: Iterable[Visit], judged_elsewhere: Set[str]) -> Iterator[Visit]:
    """Yield the pages, without the twins of those before."""
    seen = set(judged_elsewhere)
    for visit in visits:
        if visit.is_page and visit.template not in seen:
            seen |= {visit.template} & TWINS
            yield visit


@contextmanager
def open_screens(
    browser: Browser,
    base_url: str,
    addresses: Iterable[tuple[str, list[str]]],
    faults: list[str],
    *,
    judged_elsewhere: Set[str] = frozenset(),
) -> Iterator[Page]:
    """Judge the pages among these addresses, add their faults to a list, and yield a page."""
    acme = factories.create_organization()
    admin = admin_client.sit(acme, Role.OWNER)
    admin.user.is_superuser = True
    admin.user.save()
    visits = visit_pages(admin.client, fill(acme), addresses)
    pages = [(visit.name, visit.path) for visit in get_distinct(visits, judged_elsewhere)]
    assert len(pages) > 30
    with open_context(browser, base_url) as page:
        page.add_init_script(path=AXE)
        held = admin.client.cookies[settings.SESSION_COOKIE_NAME]
        page.context.add_cookies([{"name": held.key, "value": held.value, "url": base_url}])

        def listen(message: ConsoleMessage) -> None:
            if message.type == "error":
                faults.append(f"{page.url} console: {message.text}")

        page.on("console", listen)
        for number, (name, path) in enumerate(pages):
            part = CONTENT if number else None
            page.set_viewport_size(DESK)
            page.goto(path)
            faults += [f"{path} {one}" for one in judged(page, "tag", WCAG, part)]
            picture(page, f"{name}-desk")
            page.set_viewport_size(PHONE)
            page.evaluate("document.documentElement.classList.add('dark')")
            faults += [f"{path} phone {one}" for one in judged(page, "rule", SHAPES, part)]
            width = page.evaluate("document.documentElement.scrollWidth")
            faults += [f"{path} is {width} pixels wide"] if width > PHONE["width"] else []
            picture(page, f"{name}-phone")
        yield page
    get_writer().close()


def test_axe_finds_nothing_serious_on_lists_forms_and_the_palette(
    module_web: Web, module_browser: Browser
) -> None:
    """The screens of objects are judged in `test_screens_of_objects.py`."""
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
        expect(page.get_by_role("option")).to_have_count(1)
        faults += [f"palette {one}" for one in judged(page, "tag", WCAG)]
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("/organization/halt/"))
    assert not faults, "\n".join(faults)
