"""Chromium from the system's package, with checks for requests to other hosts and script errors."""

import asyncio
import os
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    Request,
    ViewportSize,
    sync_playwright,
)

from tests.parts import find_chromium

PATIENCE_MS = 15_000
DESKTOP: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 375, "height": 812}
# Only this machine's names are resolved: intercepting requests would disable the cache.
# What a site may store, except for its cached files.
STORAGE = "cookies,indexeddb,local_storage,service_workers,cache_storage"
NO_OTHER_HOST = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"


class SharedBrowser:
    """The Chromium of this process of the run: its start takes as long as several pages.

    While a test uses it, this thread runs Playwright's event loop. In between, that loop isn't the
    thread's running one, so that async tests can run.
    """

    def __init__(self) -> None:
        with ExitStack() as stack:
            playwright = stack.enter_context(sync_playwright())
            # CI runs as root, where Chromium's sandbox isn't available.
            self.browser = playwright.chromium.launch(
                executable_path=find_chromium(), args=["--no-sandbox", NO_OTHER_HOST]
            )
            stack.callback(self.browser.close)
            self._stack = stack.pop_all()
        self.idle_contexts: dict[str, BrowserContext] = {}
        self._loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)

    @contextmanager
    def run_loop(self) -> Iterator[None]:
        """Make Playwright's loop this thread's running one."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(outer)

    def close(self) -> None:
        """End Chromium and Playwright."""
        with self.run_loop():
            self._stack.close()


_shared: list[SharedBrowser] = []


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Use this process's Chromium, which the first use starts.

    Meanwhile this thread runs Playwright's event loop, so Django's check for that must be disabled,
    and no async test can run.
    """
    if _shared and not _shared[0].browser.is_connected():
        close_browser()
    if not _shared:
        _shared.append(SharedBrowser())
    with _shared[0].run_loop():
        yield _shared[0].browser


def close_browser() -> None:
    """End Chromium, if it was started."""
    if _shared:
        _shared.pop().close()


@contextmanager
def open_page(base_url: str, *, loopback: bool = False) -> Iterator[Page]:
    """Open a page in Chromium: see `open_context`."""
    with open_browser() as browser, open_context(browser, base_url, loopback=loopback) as page:
        yield page


@contextmanager
def open_context(browser: Browser, base_url: str, *, loopback: bool = False) -> Iterator[Page]:
    """Open a page without cookies; fail if it requested another host or a script failed.

    With `loopback`, it may request other ports of this machine, where programs wait for users.
    """
    foreign: list[str] = []
    faults: list[str] = []

    def notice(request: Request) -> None:
        url = urlsplit(request.url)
        own = url.netloc == urlsplit(base_url).netloc or (loopback and url.hostname == "127.0.0.1")
        if url.scheme not in {"data", "blob"} and not own:
            foreign.append(request.url)

    with _use_context(browser, base_url) as context:
        context.on("request", notice)
        try:
            page = context.new_page()
            page.on("pageerror", lambda error: faults.append(str(error)))
            yield page
        finally:
            context.remove_listener("request", notice)
    assert not foreign, f"asked other hosts: {foreign}"
    assert not faults, f"scripts failed: {faults}"


@contextmanager
def _use_context(browser: Browser, base_url: str) -> Iterator[BrowserContext]:
    """Use a context that an earlier test has left, or a new one.

    It keeps the files of the site and their compiled scripts, but nothing else. After a failure,
    the context isn't used again.
    """
    idle = _shared[0].idle_contexts
    context = idle.pop(base_url, None) or browser.new_context(base_url=base_url, viewport=DESKTOP)
    context.set_default_timeout(PATIENCE_MS)
    try:
        yield context
        _clear_context(context, base_url)
    except BaseException:
        context.close()
        raise
    if base_url in idle:  # two were in use
        context.close()
    else:
        idle[base_url] = context


def _clear_context(context: BrowserContext, base_url: str) -> None:
    """Close the pages of a context, and delete what the site has stored."""
    last, *others = context.pages or [context.new_page()]
    for page in others:
        page.close()
    context.set_offline(False)
    devices = context.new_cdp_session(last)
    devices.send("Storage.clearDataForOrigin", {"origin": base_url, "storageTypes": STORAGE})
    context.clear_cookies()
    last.close()


def save_page(page: Page, folder: Path) -> None:
    """Save a screenshot and the HTML of a page for the report of a failure."""
    page.screenshot(path=folder / "page.png", full_page=True)
    (folder / "page.html").write_text(page.content(), encoding="utf-8")


def take_screenshot(page: Page, name: str, *, restore: bool = True) -> None:
    """Save a screenshot if TEST_SCREENSHOTS names a folder.

    Without `restore`, the window stays as high as the page.
    """
    folder, size = os.environ.get("TEST_SCREENSHOTS"), page.viewport_size
    if not folder or size is None:
        return
    # Sticky footers would otherwise cover the middle of a page that is higher than the window.
    height = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": size["width"], "height": max(height, size["height"])})
    # Playwright's own command spends most of its time on a stronger compression.
    devices = page.context.new_cdp_session(page)
    picture = devices.send("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True})
    devices.detach()
    Path(folder, f"{name}.png").write_bytes(b64decode(picture["data"]))
    if restore:
        page.set_viewport_size(size)
