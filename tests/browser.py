"""A real Chromium on the system's binary, that notices faults of pages by itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Page, Route, sync_playwright

from tests.parts import chromium

PATIENCE_MS = 15_000


@contextmanager
def open_page(base_url: str) -> Iterator[Page]:
    """Open a page; afterwards fail if it asked another host or a script failed.

    While it is open this thread counts as running an event loop (Playwright's), so Django's own
    guard against that must be off, and no async test can run: one page belongs to one test.
    """
    foreign: list[str] = []
    faults: list[str] = []

    def guard(route: Route) -> None:
        url = urlsplit(route.request.url)
        if url.scheme in {"data", "blob"} or url.netloc == urlsplit(base_url).netloc:
            route.continue_()
        else:
            foreign.append(route.request.url)
            route.abort()

    with sync_playwright() as playwright:
        # CI runs as root, where Chromium's own sandbox can't.
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        context = browser.new_context(base_url=base_url, viewport={"width": 1280, "height": 900})
        context.set_default_timeout(PATIENCE_MS)
        context.route("**/*", guard)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        try:
            yield page
        finally:
            browser.close()
    assert not foreign, f"asked other hosts: {foreign}"
    assert not faults, f"scripts failed: {faults}"


def keep(page: Page, folder: Path) -> None:
    """Keep what a page shows and is, for whoever looks into a failure."""
    page.screenshot(path=folder / "page.png", full_page=True)
    (folder / "page.html").write_text(page.content(), encoding="utf-8")
