"""Find the pages and images of the documentation, render pages from Markdown, and search them.

The sources are in `docs` of a checkout, and in `bonobot/documentation` of an installed package.
Only files of a fixed list are read, so that no URL can name another file. Pages of the reference
are generated from the code.
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

from django.utils.html import escape, format_html_join
from django.utils.safestring import SafeString

from bonobot.core.documentation.learn_more import ERRORS_PAGE, build_documentation_url
from bonobot.core.documentation.reference import GENERATED_PAGES
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
_DOCUMENTATION = _CHECKOUT / "docs" if _IS_CHECKOUT else _PACKAGE / "documentation"
_ROOT = _CHECKOUT if _IS_CHECKOUT else _DOCUMENTATION
_EXTERNAL = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)
_SOURCE = re.compile(r'\b(src|srcset)="([^"]+)"')
MAX_QUERY = 200
_MAX_RESULTS = 20
_BEGINNING = r"(?<![^\W_])"  # of a word
# Words of questions, which a section about their subject may lack.
_UNSEARCHED_WORDS = frozenset(
    (
        *("a", "an", "and", "are", "can", "do", "does", "for", "from", "how", "i", "in", "is"),
        *("it", "my", "of", "on", "or", "the", "to", "what", "where", "with"),
    )
)
_MAX_MENTIONS = 5  # of a word in the text of a section that count
_EXCERPT_BEFORE, _EXCERPT_AFTER = 60, 160
_HEADING_LINE = re.compile(r"^(?P<marks>#{1,6}) (?P<title>.+)$")
# The row of an error code, which pages of the admin link to.
_CODE_ROW = re.compile(r"<tr>(?=\s*<td><code>(\w+)</code></td>)")
_ERROR_CODE = re.compile(r"[a-z]_[a-z]")
_MARKUP = re.compile(
    r"<!--.*?-->|<[a-z/][^>]*>|!?\[([^\]]*)\]\([^)]*\)|[`*]+|^```.*?$|(?:\|-{3,})+\|$",
    re.DOTALL | re.MULTILINE,
)


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
    files = {
        path.relative_to(_DOCUMENTATION).with_suffix("").as_posix(): path
        for path in _DOCUMENTATION.rglob("*.md")
    }
    files |= {
        path.relative_to(_DOCUMENTATION).as_posix(): path
        for path in (_DOCUMENTATION / "images").rglob("*")
        if path.suffix in IMAGE_TYPES
    }
    return files | {name: _ROOT / source for name, source in _ROOT_PAGES.items()}


def is_page(name: str) -> bool:
    """Return whether there is a page with this name."""
    return name in GENERATED_PAGES or (name in find_files() and not is_image(name))


def is_image(name: str) -> bool:
    return Path(name).suffix in IMAGE_TYPES


@compute_once
def load_navigation() -> tuple[NavigationSection, ...]:
    """Return the sections of the documentation's site, without pages that only the site has."""
    import yaml  # only people who read the documentation need it

    site: Any = yaml.safe_load((_ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
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
    if is_page(name):
        yield title or render_page(name).title, name


def render_page(name: str) -> RenderedPage:
    """Return a page as HTML; raises `LookupError` if there is none with this name."""
    return _render(name, _read_page(name))


def _read_page(name: str) -> str:
    """Return the Markdown of a page."""
    if name in GENERATED_PAGES:
        return _generate(name)
    text = find_files()[name].read_text(encoding="utf-8")
    return text.replace("](docs/", "](") if name in _ROOT_PAGES else text


@compute_once
def _generate(name: str) -> str:
    return GENERATED_PAGES[name](_CHECKOUT, _ROOT)


@compute_once
def _render(name: str, text: str) -> RenderedPage:
    parser = _build_parser()
    tokens = parser.parse(text)
    headings = tuple(_number_headings(tokens))
    _format_headers(tokens)
    for token in tokens:
        _rewrite_targets(name, token)
    html = parser.renderer.render(tokens, parser.options, {})
    if name == ERRORS_PAGE:
        html = _CODE_ROW.sub(r'<tr id="\1">', html)
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


def _format_headers(tokens: list["Token"]) -> None:
    """Begin the headers of tables with capital letters, as in the admin; empty ones are cells."""
    for token, content, end in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if token.type != "th_open":
            continue
        if not content.children:
            token.tag = end.tag = "td"
        elif content.children[0].type == "text":
            text = content.children[0]
            text.content = text.content[:1].upper() + text.content[1:]


def _number_headings(tokens: list["Token"]) -> Iterator[Heading]:
    """Give each heading the anchor that the documentation's site gives it, and yield it."""
    used: set[str] = set()
    for token, content in pairwise(tokens):
        if token.type != "heading_open":
            continue
        title = "".join(child.content for child in content.children or ())
        anchor = _find_unused_anchor(title, used)
        token.attrSet("id", anchor)
        yield Heading(anchor, title, int(token.tag[1:]))


def _find_unused_anchor(title: str, used: set[str]) -> str:
    """Return the anchor of a heading, and add it to the used ones of its page."""
    anchor = base = _build_anchor(title)
    number = 0
    while anchor in used:
        number += 1
        anchor = f"{base}_{number}"
    used.add(anchor)
    return anchor


def _build_anchor(title: str) -> str:
    anchor = re.sub(r"[^\w\s-]", "", title.encode("ascii", "ignore").decode()).strip().lower()
    return re.sub(r"[-\s]+", "-", anchor)


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
    if name not in find_files() and not is_page(name):
        return ""
    return build_documentation_url(f"{name}#{anchor}" if anchor else name)


def _draw_diagram(source: str) -> str:
    """Return the drawing of a Mermaid diagram, which is named by its digest."""
    digest = sha256(source.encode()).hexdigest()[:12]
    path = find_files().get(f"images/diagrams/{digest}.svg")
    drawing = path.read_text(encoding="utf-8") if path else ""
    return f'<figure class="bb-docs-diagram">{drawing}</figure>\n'


@dataclass(frozen=True)
class Section:
    """The plain text of a section, with the names and titles for a link to it."""

    page: str
    page_title: str
    heading: Heading
    text: str

    @property
    def url(self) -> str:
        """The URL of the section."""
        return build_documentation_url(f"{self.page}#{self.heading.anchor}")


@dataclass(frozen=True)
class SearchResult:
    """A section, and the HTML of its text around a match, with each match marked."""

    section: Section
    excerpt: SafeString


def search_pages(query: str, most: int = _MAX_RESULTS) -> list[SearchResult]:
    """Return the sections that contain all words of a query, the most relevant ones first.

    A word of a query matches the beginnings of words, so that `rat` finds "rate", not "operate".
    """
    typed = [word.strip("`\"'.,?!") for word in query[:MAX_QUERY].lower().split()]
    words = [word for word in dict.fromkeys(typed) if word]
    words = [word for word in words if word not in _UNSEARCHED_WORDS] or words
    patterns = [_build_pattern(word) for word in words]
    if not patterns:
        return []
    sections = [section for name in _list_searched_pages(query) for section in split_page(name)]
    ranked_sections = [(_rank(section, patterns), section) for section in sections]
    ranked = sorted((item for item in ranked_sections if item[0]), key=lambda item: -item[0])
    any_word = re.compile("|".join(pattern.pattern for pattern in patterns), re.IGNORECASE)
    return [
        SearchResult(section, _build_excerpt(section.text, any_word))
        for _rank_value, section in ranked[:most]
    ]


def _build_pattern(word: str) -> re.Pattern[str]:
    """Return a pattern for the beginnings of words; `_` separates words, as in error codes."""
    return re.compile((_BEGINNING if word[0].isalnum() else "") + re.escape(word), re.IGNORECASE)


def _rank(section: Section, patterns: list[re.Pattern[str]]) -> int:
    """Return how well a section matches; 0 if a word is missing.

    A section with a word in its title comes before all that only have it in their text.
    """
    total = 0
    for pattern in patterns:
        mentions = min(len(pattern.findall(section.text)), _MAX_MENTIONS)
        points = mentions + sum(
            weight
            for title, weight in ((section.heading.title, 60), (section.page_title, 20))
            if pattern.search(title)
        )
        if not points:
            return 0
        total += points
    # Release notes mention everything.
    if section.page == "changelog":
        return 1
    if section.page in GENERATED_PAGES:
        # Settings and codes are described where they are listed.
        total += 10 * sum("_" in pattern.pattern.removeprefix(_BEGINNING) for pattern in patterns)
    # Of two titles with all words, the one without others is meant.
    title = section.heading.title
    if all(pattern.search(title) for pattern in patterns):
        total += 20 * len(patterns) // max(len(title.split()), len(patterns))
    return total


def _build_excerpt(text: str, pattern: re.Pattern[str]) -> SafeString:
    match = pattern.search(text)
    start = max(match.start() - _EXCERPT_BEFORE, 0) if match else 0
    start = text.find(" ", start) + 1 if start else 0
    end = start + _EXCERPT_BEFORE + _EXCERPT_AFTER
    excerpt = ("… " if start else "") + text[start:end] + ("…" if end < len(text) else "")
    parts: list[tuple[str, str]] = []
    position = 0
    for match in pattern.finditer(excerpt):
        parts.append((excerpt[position : match.start()], match[0]))
        position = match.end()
    return format_html_join("", "{}<mark>{}</mark>", parts) + escape(excerpt[position:])


def _list_searched_pages(query: str) -> Iterator[str]:
    """Yield the pages to search: that of error codes, which takes longest, only for a code."""
    yield from (name for name in find_files() if not is_image(name))
    has_code = _ERROR_CODE.search(query)
    yield from (name for name in GENERATED_PAGES if has_code or name != ERRORS_PAGE)


@compute_once
def split_page(name: str) -> list[Section]:
    """Return the sections of a page, with the anchors that it has when it is rendered."""
    used: set[str] = set()
    parts: list[tuple[Heading, list[str]]] = []
    is_code = False
    for line in _read_page(name).splitlines():
        is_code ^= line.startswith("```")
        match = None if is_code else _HEADING_LINE.match(line)
        if match:
            title = _to_plain_text(match["title"])
            level = len(match["marks"])
            parts.append((Heading(_find_unused_anchor(title, used), title, level), []))
        elif parts:
            parts[-1][1].append(line)
    page_title = parts[0][0].title if parts else name
    return [
        Section(name, page_title, heading, _to_plain_text("\n".join(lines)))
        for heading, lines in parts
    ]


def _to_plain_text(text: str) -> str:
    return " ".join(_MARKUP.sub(lambda match: match[1] or "", text).replace("|", " ").split())
