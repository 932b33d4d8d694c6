"""Render untrusted Markdown as HTML: no raw HTML, no images, only absolute links with hosts."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from bonobot.core.process_cache import compute_once
from bonobot.core.text.untrusted_text import make_visible

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

# Beyond these a text isn't rendered: it could take seconds, or lose its innermost parts.
MAX_MARKDOWN_LENGTH = 20_000  # characters
MAX_NESTING = 40  # levels; a quote has one, a list two
MAX_BRACKETS = 1_000
MAX_CELLS = 10_000  # lines times columns
ALLOWED_SCHEMES = frozenset({"http", "https", "mailto"})
_ALLOWED_LINK = re.compile(r"(?:https?://|mailto:)[^\s]", re.IGNORECASE)
_ALIGNMENTS = {"text-align:right": "bb-md-right", "text-align:center": "bb-md-center"}
_ALLOWED_TAGS = frozenset(
    {
        *("a", "blockquote", "br", "code", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p"),
        *("pre", "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
    }
)
# A page has its title as the second level.
_HEADINGS = {"h1": "h3", "h2": "h4", "h3": "h5", "h4": "h6", "h5": "h6", "h6": "h6"}


@lru_cache(maxsize=256)
def render_markdown(text: str) -> str | None:
    """Return Markdown as safe HTML with hidden characters made visible; None if it is too complex.

    Links open in a new tab and carry `rel="noopener noreferrer nofollow"`; behind a text that isn't
    the address itself, the host is shown. An image is shown as its
    description and address, and never loaded.
    """
    import nh3  # not every command needs it

    if _is_too_complex(text):
        return None
    parser = _build_parser()
    environment: dict[str, Any] = {}
    tokens = parser.parse(make_visible(text), environment)
    if any(token.level >= MAX_NESTING - 1 for token in tokens):
        return None
    html = nh3.clean(
        parser.renderer.render(tokens, parser.options, environment),
        tags=set(_ALLOWED_TAGS),
        attributes={"a": {"href", "title"}, "ol": {"start"}},
        allowed_classes={name: set(_ALIGNMENTS.values()) for name in ("td", "th")},
        set_tag_attribute_values={"a": {"target": "_blank"}},
        url_schemes=set(ALLOWED_SCHEMES),
        link_rel="noopener noreferrer nofollow",
    )
    # Entities such as `&#x202e;` are characters only now.
    return make_visible(html)


def _is_too_complex(text: str) -> bool:
    if len(text) > MAX_MARKDOWN_LENGTH or text.count("[") > MAX_BRACKETS:
        return True
    lines = text.splitlines()
    return len(lines) * max((line.count("|") for line in lines), default=0) > MAX_CELLS


@compute_once
def _build_parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    parser = MarkdownIt(
        "commonmark", {"html": False, "breaks": True, "maxNesting": MAX_NESTING}
    ).enable(["table", "strikethrough"])
    parser.disable(["html_block", "html_inline"])
    parser.validateLink = _is_allowed_link  # type: ignore[method-assign]
    parser.core.ruler.push("plain_attributes", _replace_attributes)
    parser.core.ruler.push("link_hosts", _show_link_hosts)
    parser.add_render_rule("image", _render_image)
    return parser


def _is_allowed_link(url: str) -> bool:
    # A relative address would be one of our own pages, and a user name would look like the host.
    try:
        return _ALLOWED_LINK.match(url) is not None and "@" not in urlsplit(url).netloc
    except ValueError:
        return False


def _replace_attributes(state: Any) -> None:
    """Lower headings, and replace inline styles, which the content security policy forbids."""
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = _HEADINGS[token.tag]
        style = token.attrs.pop("style", None)
        if style in _ALIGNMENTS:
            token.attrs["class"] = _ALIGNMENTS[style]


def _show_link_hosts(state: Any) -> None:
    """Add the host, or the address of an email, to the text of each link that isn't its address."""
    from markdown_it.token import Token

    for block in state.tokens:
        children, link_text, url = [], "", ""
        for token in block.children or ():
            if token.type == "link_open":
                link_text, url = "", str(token.attrs.get("href", ""))
            elif token.type == "link_close":
                address = unquote(url.removeprefix("mailto:"))
                if unquote(link_text).strip() != address:
                    text = Token("text", "", 0)
                    text.content = f" ({urlsplit(url).netloc or address})"
                    children.append(text)
            link_text += token.content
            children.append(token)
        if block.children is not None:
            block.children = children


def _render_image(
    _renderer: Any, tokens: "Sequence[Token]", index: int, options: Any, environment: Any
) -> str:
    from markdown_it.common.utils import escapeHtml

    token = tokens[index]
    description, url = token.content.strip(), str(token.attrs.get("src", ""))
    return escapeHtml(f"{description} ({url})" if description else url)
