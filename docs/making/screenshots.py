"""Takes the screenshots of README.md and docs/first-steps.md: `make screenshots`.

An installation of its own is started with the demo, something is done in it, and its pages are
taken from Chromium in light and dark. WebP, since ten of them shall be small.
"""

import base64
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from tests.parts import find_chromium

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "images" / "screens"
SIZE: ViewportSize = {"width": 1280, "height": 800}
READY_WITHIN_S = 300
PASSWORD = re.compile(r"password\s+(\S+)")
QUALITY = 0.82
# What is done before pages are taken: calls that are allowed, one that waits, one that is refused.
DONE = (
    ("agents", "run", "demo", "What time is it in Asia/Tokyo?"),
    ("mcp", "test-tool", "time", "get_current_time", '{"timezone": "Europe/Berlin"}'),
    ("agents", "explain", "demo", "mcp_time_get_current_time"),
    ("agents", "policy", "demo", "--ask", "mcp_time_convert_time"),
    ("agents", "run", "demo", "/mcp_git_git_commit {}"),
    ("agents", "run", "demo", "Convert the time 14:30 from Europe/Berlin to Asia/Tokyo"),
)
WEBP = """async ([data, quality]) => {
  const image = new Image();
  image.src = data;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  canvas.getContext("2d").drawImage(image, 0, 0);
  return canvas.toDataURL("image/webp", quality);
}"""


def main() -> None:
    """Take all of them."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as (url, password):
        for command in DONE:
            bonobot(Path(folder), *command)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=find_chromium(), args=["--no-sandbox", "--font-render-hinting=none"]
            )
            for scheme in ("light", "dark"):
                take(browser, url, password, scheme)
            browser.close()


@contextmanager
def running(folder: Path) -> Iterator[tuple[str, str]]:
    """Run `bonobot up` with the demo in a folder; give its address and the password of `admin`."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    said = folder / "up.log"
    with said.open("w", encoding="utf-8") as log:
        command = [sys.executable, "-m", "bonobot", "up", "--port", str(port)]
        up = subprocess.Popen(  # noqa: S603 - our own Python
            command, cwd=ROOT, env=environment(folder), stdout=log, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + READY_WITHIN_S
        while not (found := PASSWORD.search(said.read_text(encoding="utf-8"))):
            if up.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(said.read_text(encoding="utf-8"))
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}", found[1]
    finally:
        up.terminate()
        up.wait(60)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of an installation in a folder, with none of ours."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("BONOBOT_")}
    return own | {"BONOBOT_VAR": str(folder / "var"), "NO_COLOR": "1"}


def bonobot(folder: Path, *arguments: str) -> None:
    """Run a command; a refusal is what some of them are for."""
    command = [sys.executable, "-m", "bonobot", *arguments]
    subprocess.run(  # noqa: S603 - our own Python
        command, cwd=ROOT, env=environment(folder), check=False, stdout=subprocess.DEVNULL
    )


def take(browser: Browser, url: str, password: str, scheme: str) -> None:
    """Take each page in a scheme."""
    context = browser.new_context(
        base_url=url,
        viewport=SIZE,
        color_scheme="dark" if scheme == "dark" else "light",
        locale="en-GB",
        reduced_motion="reduce",
    )
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.goto("/admin/")
    page.fill("input[name=username]", "admin")
    page.fill("input[name=password]", password)
    page.press("input[name=password]", "Enter")
    page.wait_for_url("**/admin/")
    keep(page, "dashboard", scheme)
    for name, path in pages(page):
        page.goto(path)
        keep(page, name, scheme)
    context.close()


def pages(page: Page) -> Iterator[tuple[str, str]]:
    """Yield the other pages with their addresses."""
    page.goto(_row(page, "/admin/mcp-servers/?q=time", "time"))
    yield "server", str(page.get_by_role("link", name="Tools", exact=True).get_attribute("href"))
    yield "session", _row(page, "/admin/sessions/", "What time is it")
    yield "approvals", "/admin/approvals/"
    yield "audit", "/admin/audit-log/"


def _row(page: Page, path: str, words: str) -> str:
    """Return where the last row of a list with these words leads: the first that was made."""
    page.goto(path)
    row = page.locator("#result_list tbody tr", has_text=words).last
    return str(row.locator("a[href*='/']").first.get_attribute("href"))


def keep(page: Page, name: str, scheme: str) -> None:
    """Keep what is seen as `NAME-SCHEME.webp`."""
    page.wait_for_load_state("networkidle")
    taken = base64.b64encode(page.screenshot()).decode("ascii")
    converting = page.context.new_page()
    written = converting.evaluate(WEBP, [f"data:image/png;base64,{taken}", QUALITY])
    converting.close()
    data = base64.b64decode(written.partition(",")[2])
    (FOLDER / f"{name}-{scheme}.webp").write_bytes(data)


if __name__ == "__main__":
    main()
