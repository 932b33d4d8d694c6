"""Find the pages and images of the documentation, and render pages from Markdown.

The sources are in `docs` of a checkout, and in `bonobot/documentation` of an installed package.
Only files of a fixed list are read, so that no URL can name another file.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from posixpath import dirname, normpath
from posixpath import join as join_path
from typing import TYPE_CHECKING, Any

from bonobot.core.process_cache import compute_once

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

FIRST_PAGE = "index"
IMAGE_TYPES = {".svg": "image/svg+xml", ".webp": "image/webp"}
_PACKAGE = Path(__file__).resolve().parents[2]
_CHECKOUT = _PACKAGE.parent
_IS_CHECKOUT = (_CHECKOUT / "mkdocs.yml").is_file()
# Pages whose source isn't in the folder of the documentation.
_ROOT_PAGES = {"changelog": "CHANGELOG.md", "security-policy": "SECURITY.md"}
_EXTERNAL = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)
_SOURCE = re.compile(r'\b(src|srcset)="([^"]+)"')


@dataclass(frozen=True)
class Heading:
    """A section of a page."""

    anchor: str
    title: str
    level: int


@dataclass(frozen=True)
class RenderedPage:
    """A page as HTML, with its title and sections."""

    title: str
    html: str
    headings: tuple[Heading, ...]

    @property
    def anchors(self) -> frozenset[str]:
        return frozenset(heading.anchor for heading in self.headings)


@dataclass(frozen=True)
class NavigationSection:
    """A section of the navigation: its title, and the titles and names of its pages."""

    title: str
    pages: tuple[tuple[str, str], ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for _title, name in self.pages)


@compute_once
def find_files() -> Mapping[str, Path]:
    """Return the files by name: pages without their ending (`how-to/admin`), images with it."""
    folder = _CHECKOUT / "docs" if _IS_CHECKOUT else _PACKAGE / "documentation"
    files = {
        path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.md")
    }
    files |= {
        path.relative_to(folder).as_posix(): path
        for path in (folder / "images").rglob("*")
        if path.suffix in IMAGE_TYPES
    }
    root = _CHECKOUT if _IS_CHECKOUT else folder
    return files | {name: root / source for name, source in _ROOT_PAGES.items()}


def is_image(name: str) -> bool:
    return Path(name).suffix in IMAGE_TYPES


@compute_once
def load_navigation() -> tuple[NavigationSection, ...]:
    """Return the sections of the documentation's site, without pages that only the site has."""
    import yaml  # only people who read the documentation need it

    root = _CHECKOUT if _IS_CHECKOUT else _PACKAGE / "documentation"
    site: Any = yaml.safe_load((root / "mkdocs.yml").read_text(encoding="utf-8"))
    sections = [(title, entry) for item in site["nav"] for title, entry in item.items()]
    return tuple(
        NavigationSection(title, pages)
        for title, entry in sections
        if (pages := tuple(_list_pages(title, entry)))
    )


def _list_pages(title: str, entry: Any) -> Iterator[tuple[str, str]]:
    """Yield the titles and names of the pages of an entry and of the entries below it."""
    if isinstance(entry, list):
        for item in entry:
            if isinstance(item, dict):
                for subtitle, subentry in item.items():
                    yield from _list_pages(subtitle, subentry)
            else:
                yield from _list_pages("", item)
        return
    name = entry.removesuffix(".md")
    if name in find_files():
        yield title or render_page(name).title, name


def render_page(name: str) -> RenderedPage:
    """Return a page as HTML; raises `LookupError` if there is none with this name."""
    path = find_files()[name]
    return _render(name, path, path.stat().st_mtime_ns)


@compute_once
def _render(name: str, path: Path, _changed_at: int) -> RenderedPage:
    text = path.read_text(encoding="utf-8")
    if name in _ROOT_PAGES:
        text = text.replace("](docs/", "](")
    parser = _build_parser()
    tokens = parser.parse(text)
    headings = tuple(_number_headings(tokens))
    for token in tokens:
        _rewrite_targets(name, token)
    html = parser.renderer.render(tokens, parser.options, {})
    title = next((heading.title for heading in headings if heading.level == 1), name)
    return RenderedPage(title, html, headings)


def _build_parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt  # only people who read the documentation need it

    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    parser.add_render_rule("table_open", lambda *_: '<div class="bb-docs-table"><table>')
    parser.add_render_rule("table_close", lambda *_: "</table></div>")
    rules: Any = vars(parser.renderer)["rules"]
    default_fence = rules["fence"]
    rules["fence"] = lambda tokens, index, options, env: (
        _draw_diagram(tokens[index].content)
        if tokens[index].info == "mermaid"
        else default_fence(tokens, index, options, env)
    )
    return parser


def _number_headings(tokens: list["Token"]) -> Iterator[Heading]:
    """Give each heading the anchor that the documentation's site gives it, and yield it."""
    used: set[str] = set()
    for token, content in pairwise(tokens):
        if token.type != "heading_open":
            continue
        title = "".join(child.content for child in content.children or ())
        anchor = base = _build_anchor(title)
        number = 0
        while anchor in used:
            number += 1
            anchor = f"{base}_{number}"
        used.add(anchor)
        token.attrSet("id", anchor)
        yield Heading(anchor, title, int(token.tag[1:]))


def _build_anchor(title: str) -> str:
    words = re.sub(r"[^\w\s-]", "", title.encode("ascii", "ignore").decode()).strip().lower()
    return re.sub(r"[-\s]+", "-", words)


def _rewrite_targets(page: str, token: "Token") -> None:
    """Let links and images point to `/docs`; links to pages that aren't here lose their target."""
    if token.type in ("html_block", "html_inline"):
        token.content = _SOURCE.sub(
            lambda match: f'{match[1]}="{_resolve(page, match[2])}"', token.content
        )
    for name in {"link_open": ("href",), "image": ("src",)}.get(token.type, ()):
        target = _resolve(page, str(token.attrs[name]))
        if target:
            token.attrSet(name, target)
        else:
            del token.attrs[name]
    for child in token.children or ():
        _rewrite_targets(page, child)


def _resolve(page: str, target: str) -> str:
    """Return the URL of a link's target; blank if it isn't a file of the documentation."""
    if _EXTERNAL.match(target):
        return target
    path, _hash, anchor = target.partition("#")
    name = normpath(join_path(dirname(page), path)).removesuffix(".md") if path else page
    if name not in find_files():
        return ""
    return build_documentation_url(f"{name}#{anchor}" if anchor else name)


def _draw_diagram(source: str) -> str:
    """Return the drawing of a Mermaid diagram, which is named by its digest."""
    digest = sha256(source.encode()).hexdigest()[:12]
    path = find_files().get(f"images/diagrams/{digest}.svg")
    drawing = path.read_text(encoding="utf-8") if path else ""
    return f'<figure class="bb-docs-diagram">{drawing}</figure>\n'


# By the URL name of a page in the admin, or the start of several names: a page of the
# documentation and, after `#`, the anchor of a section.
LINKS: Mapping[str, str] = {
    "first_run": "first-steps",
    "agents_accessrequest": "approvals#access-requests",
    "agents_agent": "how-to/admin",
    "agents_agent_builtin": "built-in-tools#enable-toolsets",
    "agents_agent_clients": "gateway",
    "agents_agent_notes": "notes",
    "agents_agent_policy": "policies#rules",
    "agents_agent_recording": "evaluation#recordings",
    "agents_agent_servers": "policies#rules",
    "agents_agent_simulate": "replay#simulate-a-policy",
    "agents_approval": "approvals#what-an-approval-covers",
    "agents_budget": "limits#budgets",
    "agents_elicitationrequest": "server-requests#elicitation-requests",
    "agents_modelendpoint": "models",
    "agents_session": "sessions",
    "agents_skill": "skills",
    "agents_workflow": "workflows",
    "agents_workflow_triggers": "workflows#triggers",
    "ledger_auditrow": "audit#read-the-log",
    "mcp_servers_preset": "concepts#review-while-adding",
    "mcp_servers_server": "concepts#definitions-and-reviews",
    "mcp_servers_server_data_labels": "flow-labels#labels-of-stored-data",
    "mcp_servers_server_definitions": "concepts#definitions-and-reviews",
    "mcp_servers_server_paste": "importing#supported-files",
    "mcp_servers_server_prompts": "resources-and-prompts",
    "mcp_servers_server_resources": "resources-and-prompts",
    "mcp_servers_server_tools": "flow-labels#set-labels",
    "notices_notification": "notifications",
    "organization_kill_switch": "policies#kill-switches",
    "organization_policy": "policies#order-of-decision",
    "organization_simulate": "replay#the-organizations-policy",
    "tenancy_invitation": "people#invitations",
    "tenancy_issuer": "tokens#external-issuers",
    "tenancy_membership": "roles",
    "tenancy_provider": "people#single-sign-on",
    "tenancy_token": "tokens#scopes",
    "oauth_clients": "tokens#oauth-clients",
    "usage": "audit#usage-and-cost",
}


def find_documentation(url_name: str) -> str:
    """Return what documents a page of the admin, by the longest match; blank: the first page."""
    starts = [start for start in LINKS if url_name == start or url_name.startswith(f"{start}_")]
    return LINKS[max(starts, key=len)] if starts else ""


def build_documentation_url(target: str) -> str:
    """Return the URL of a page, or of a section after `#`; blank for the first page."""
    return f"/docs/{target}"
