"""Pages of HTML as text: what a reader sees, with its links; nothing that hides or runs. Pure.

Pages come from anybody, so they are read in one pass, in linear time and without a tree: the
parsers at hand take minutes for a few hundred kilobytes of unfinished or deeply nested tags.
"""

import re
from collections.abc import Mapping
from html import unescape
from urllib.parse import urljoin

import re2

# With these everything inside them goes.
LEFT_OUT = frozenset(
    [
        "script",
        "style",
        "template",
        "noscript",
        "svg",
        "math",
        "iframe",
        "object",
        "embed",
        "canvas",
        "audio",
        "video",
        "select",
        "textarea",
        "head",
    ]
)
VOID = frozenset(
    [
        "area",
        "base",
        "br",
        "col",
        "embed",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "source",
        "track",
        "wbr",
    ]
)
BLOCKS = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "br",
        "dd",
        "details",
        "div",
        "dl",
        "dt",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "html",
        "li",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "title",
        "tr",
        "ul",
    ]
)
HEADINGS: Mapping[str, str] = {f"h{level}": "#" * level + " " for level in range(1, 7)}
# Their content is text up to their own end (HTML, 13.2.6.2).
RAW = frozenset(("script", "style", "textarea", "title", "iframe", "noscript"))
CLOSER = re.compile("[>\"']")
LONGEST_TAG = 4096  # of one that is longer the attributes are not read
NAME = re.compile(r"/?([A-Za-z][A-Za-z0-9:-]*)")
ATTRIBUTE = re2.compile(
    r"""([A-Za-z][A-Za-z0-9:_-]*)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+)))?"""
)
DEEPEST = 500
LONGEST_LINK = 500


def readable_page(html: str, url: str) -> str:
    """Return a page's text: title, headings, lists, links; hidden elements are left out."""
    page, lower, at = _Page(url), html.lower(), 0
    while (start := html.find("<", at)) >= 0:
        page.text_part(unescape(html[at:start]))
        if html.startswith("<!--", start):
            end = html.find("-->", start + 4)
            at = end + 3
        elif html[start + 1 : start + 2] in ("!", "?"):
            end = html.find(">", start)
            at = end + 1
        elif not (name := NAME.match(html[start + 1 : start + 64])):
            page.text_part("<")
            end = at = start + 1
        else:
            end = _end_of_tag(html, start)
            at = end + 1
            tag, closing = name.group(1).lower(), html[start + 1] == "/"
            if end >= 0 and closing:
                page.close(tag)
            elif end >= 0:
                page.open(tag, _attributes(html[start + 1 + name.end() : end]))
                if tag in RAW:
                    end = lower.find(f"</{tag}", at)
                    page.text_part(unescape(html[at:end]) if tag == "title" else "")
                    at = end
        if end < 0:  # unfinished: the rest belongs to it
            return page.text()
    page.text_part(unescape(html[at:]))
    return page.text()


def _end_of_tag(html: str, at: int) -> int:
    """Return where a tag's `>` is, outside of quotes; -1 for an unfinished one."""
    while found := CLOSER.search(html, at):
        at = found.start()
        if html[at] == ">":
            return at
        at = html.find(html[at], at + 1) + 1
        if not at:
            return -1
    return -1


def _attributes(text: str) -> dict[str, str]:
    if ("=" not in text and "hidden" not in text) or len(text) > LONGEST_TAG:
        return {}
    return {
        one.group(1).lower(): unescape(one.group(2) or one.group(3) or one.group(4) or "")
        for one in ATTRIBUTE.finditer(text)
    }


class _Page:
    """Collects text while a page is read; wrong nesting is taken as it comes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lines: list[str] = []
        self._line: list[str] = []
        self._hidden: list[str] = []
        self._links: list[str] = []
        self._title: list[str] | None = None
        self._pre = 0

    def open(self, tag: str, said: Mapping[str, str]) -> None:
        """Open an element."""
        if tag == "title" and self._title is None:
            self._title = []
            self._hidden.append(tag)
            return
        hides = tag in LEFT_OUT or (said and _is_hidden(said))
        if self._hidden or hides:
            # A head is left by its body, whose start may be all that says so.
            if tag == "body" and self._hidden == ["head"]:
                self._hidden.clear()
            elif tag not in VOID and len(self._hidden) < DEEPEST:
                self._hidden.append(tag)
            return
        if tag in BLOCKS:
            self._end_line()
        self._pre += tag == "pre"
        self._line.append(HEADINGS.get(tag, "- " if tag == "li" else ""))
        if tag == "a":
            self._links.append(said.get("href", ""))
        if tag == "img" and (alt := said.get("alt")):
            self._line.append(f"[image: {alt}]")
        if tag in ("td", "th"):
            self._line.append(" | ")

    def close(self, tag: str) -> None:
        """Close an element."""
        if self._hidden:
            if tag in self._hidden:
                while self._hidden.pop() != tag:
                    pass
            return
        if tag == "a" and self._links:
            self._line.append(self._link(self._links.pop()))
        if tag in BLOCKS:
            self._end_line(keep=self._pre > 0)
        self._pre -= tag == "pre" and self._pre > 0

    def text_part(self, data: str) -> None:
        """Take text."""
        if self._hidden:
            if self._hidden[-1] == "title" and self._title is not None:
                self._title.append(data)
        elif self._pre:
            *lines, rest = data.split("\n")
            for line in lines:
                self._line.append(line)
                self._end_line(keep=True)
            self._line.append(rest)
        else:
            self._line.append(data)

    def text(self) -> str:
        """Return what was read."""
        self._end_line()
        title = " ".join("".join(self._title or ()).split())
        return "\n".join([*([f"# {title}", ""] if title else []), *self._lines]).strip()

    def _link(self, href: str) -> str:
        target = urljoin(self._url, href) if _is_link(href) else ""
        return f" ({target})" if target and len(target) <= LONGEST_LINK else ""

    def _end_line(self, *, keep: bool = False) -> None:
        text = "".join(self._line)
        self._line.clear()
        shown = text.rstrip() if keep else " ".join(text.split())
        if shown and shown not in ("-", "|"):
            self._lines.append(shown)


def _is_link(href: str) -> bool:
    scheme = href.partition(":")[0].lower() if ":" in href.partition("/")[0] else ""
    return bool(href) and not href.startswith("#") and scheme in ("", "http", "https")


def _is_hidden(said: Mapping[str, str]) -> bool:
    style = "".join(said.get("style", "").lower().split())
    unseen = ("display:none", "visibility:hidden", "opacity:0;", "font-size:0;")
    return (
        "hidden" in said
        or said.get("aria-hidden") == "true"
        or any(rule in f"{style};" for rule in unseen)
    )
