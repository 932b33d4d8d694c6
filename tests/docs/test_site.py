"""The documentation site: built in strict mode, complete, and without assets of other hosts."""

import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from docs.making.diagrams import find_diagrams
from tests.browser import open_page
from tests.parts import ROOT

pytestmark = pytest.mark.whole
# Assets that a page loads; links to other pages aren't assets.
ASSET = re.compile(
    r"<(?:script|img|source|iframe|link)\b[^>]*?\b(?:src|srcset|href)=[\"']?((?:https?:)?//[^\"'\s>]+)"
)
STYLE_ASSET = re.compile(r"(?:url\(|@import\s*)[\"']?((?:https?:)?//[^\"')\s]+)")
DRAWN = ("concepts", "index")


def build(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site), *arguments],
        cwd=ROOT,
        env=os.environ | {"BONOBOT_VAR": str(folder), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a broken link, anchor or navigation entry fails the build."""
    folder = tmp_path_factory.mktemp("docs")
    result = build(folder / "site", folder / "var")
    assert not result.returncode, result.stdout + result.stderr
    return folder / "site"


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    class QuietHandler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(folder))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_the_site_has_every_page(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert len(pages) > 30
    missing = [page for page in pages if not (site / page).with_suffix(".html").is_file()]
    assert not missing


def test_every_mermaid_diagram_is_a_drawing_with_a_title_on_its_page(site: Path) -> None:
    drawings = find_diagrams()
    assert set((ROOT / "docs" / "images" / "diagrams").glob("*.svg")) == set(drawings)
    page = (site / "architecture.html").read_text(encoding="utf-8")
    for path, source in drawings.items():
        assert f'<svg id="diagram-{path.stem}"' in page
        title = re.search(r"^ *accTitle: (.+)$", source, re.MULTILINE)
        assert title
        assert f">{title[1]}</title>" in page
    assert "language-mermaid" not in page
    assert "accTitle" not in page


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    foreign = {
        f"{page.name}: {url}"
        for page in site.rglob("*.html")
        for url in ASSET.findall(page.read_text(encoding="utf-8"))
    }
    foreign |= {
        f"{page.name}: {url}"
        for page in site.rglob("*.css")
        for url in STYLE_ASSET.findall(page.read_text(encoding="utf-8"))
    }
    assert not foreign


def test_only_pages_and_their_images_are_published(site: Path) -> None:
    assert not [*site.rglob("*.py"), *site.rglob("*.md")]


def test_a_broken_anchor_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[there](#nowhere)\n", encoding="utf-8")
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:\n")[0]
    config = config.replace("hooks: [docs/making/site.py]", "").replace("docs_dir: docs", "")
    (tmp_path / "mkdocs.yml").write_text(
        config + f"\ndocs_dir: {tmp_path / 'docs'}\n", encoding="utf-8"
    )
    result = build(tmp_path / "site", tmp_path, "--config-file", str(tmp_path / "mkdocs.yml"))
    assert result.returncode
    assert "nowhere" in result.stderr


@pytest.mark.browser
def test_drawings_follow_the_color_scheme_and_the_search_works(site: Path) -> None:
    with serve(site) as url, open_page(url) as page:
        for name in DRAWN:
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                page.goto(f"/{name}.html")
                drawing = page.locator("figure.drawing svg").first
                colour = drawing.locator("text").first.evaluate("it => getComputedStyle(it).fill")
                assert (colour == "rgb(31, 41, 55)") == (scheme == "light")
                assert drawing.get_attribute("aria-labelledby")
        page.locator("input[name=query]").click()
        # Text that is typed before the index is loaded isn't searched for.
        page.locator(".md-search-result__meta", has_text="Type to start").wait_for()
        page.locator("input[name=query]").press_sequentially("prune")
        page.locator(".md-search-result__link", has_text="audit").first.wait_for()
