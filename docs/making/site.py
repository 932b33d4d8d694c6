"""The hook of MkDocs (`mkdocs.yml`): pages that are made while the site is built, and its pictures.

The changelog and the security policy lie where everybody looks for them, at the root of the
repository; here they become pages. Drawings (`images/drawings/*.svg`) become part of their page, so
that they follow its light and dark; in a file of their own they follow the reader's system.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # MkDocs loads this file by its path

from docs.making import diagrams, reference  # noqa: E402

REST = "reference/rest/"
FROM_ROOT = {"changelog.md": "CHANGELOG.md", "security-policy.md": "SECURITY.md"}
ICON = "bonobot/static/bonobot/icon.svg"
DRAWING = re.compile(
    r'<img alt="(?P<alt>[^"]*)" src="[^"]*?images/drawings/(?P<name>[a-z-]+)\.svg" />'
)
DIAGRAM = re.compile(r'<div data-diagram="([0-9a-f]+)"></div>')
STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
LINK_TO_DOCS = re.compile(r"\]\(docs/")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the pages of REST in the navigation, where `reference/rest/` stands."""
    found = sorted(uri for uri in reference.pages() if uri.startswith("rest/"))
    for section in config.nav or ():
        for entry in section.get("Reference", ()):
            if isinstance(entry, dict) and entry.get("REST") == REST:
                entry["REST"] = [{_title(uri): f"reference/{uri}"} for uri in found]
    return config


def _title(uri: str) -> str:
    return Path(uri).stem.replace("-", " ").capitalize()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that don't lie in `docs`."""
    for uri, source in FROM_ROOT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, uri, content=LINK_TO_DOCS.sub("](", text)))
    for uri, text in reference.pages().items():
        files.append(File.generated(config, f"reference/{uri}", content=text))
    icon = (ROOT / ICON).read_bytes()
    files.append(File.generated(config, "images/icon.svg", content=icon))
    return files


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put a mark where each Mermaid diagram is; raises `PluginError` if one isn't drawn."""
    return diagrams.BLOCK.sub(lambda found: _mark_diagram(found[1]), text)


def _mark_diagram(source: str) -> str:
    path = diagrams.get_diagram_path(source)
    if not path.exists():
        raise PluginError(f"A Mermaid diagram has no {path.name}: run `make diagrams`.")
    return f'<div data-diagram="{path.stem}"></div>\n'


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put drawings and diagrams into the page."""
    html = DIAGRAM.sub(
        lambda found: (
            '<figure class="diagram">'
            f"{(diagrams.FOLDER / f'{found[1]}.svg').read_text(encoding='utf-8')}</figure>"
        ),
        html,
    )
    return DRAWING.sub(lambda found: drawn(found["name"], found["alt"]), html)


def drawn(name: str, alt: str) -> str:
    """Return a drawing to put into a page; raises `PluginError` where it lacks words for the blind.

    Its own style is left out: the site's does it, in both schemes.
    """
    path = ROOT / "docs" / "images" / "drawings" / f"{name}.svg"
    text = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)  # noqa: S314 - a file of ours
    svg = "{http://www.w3.org/2000/svg}"
    if root.find(f"{svg}title") is None or root.get("role") != "img" or not alt:
        raise PluginError(
            f'{path.name}: a drawing needs `role="img"`, a title, and alt text in its page.'
        )
    return f'<figure class="drawing">{STYLE.sub("", text)}</figure>'
