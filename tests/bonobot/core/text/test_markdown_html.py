"""Markdown of models: formatted, but without HTML, scripts, images or hidden text."""

import re
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.text.markdown_html import (
    ALLOWED_SCHEMES,
    MAX_BRACKETS,
    MAX_MARKDOWN_LENGTH,
    MAX_NESTING,
    render_markdown,
)
from bonobot.core.text.untrusted_text import make_visible

ALLOWED_ATTRIBUTES = {
    "a": {"href", "title", "target", "rel"},
    "ol": {"start"},
    "td": {"class"},
    "th": {"class"},
}
FORBIDDEN_TAGS = {"img", "script", "style", "iframe", "svg", "form", "input", "base", "object"}
FRAGMENTS = [
    *("[x](", "![x](", "<", ">", ")", "]", "[", "`", "```\n", "\n", "\n\n", "* ", "> ", "|", "|-|"),
    *(
        "javascript:alert(1)",
        "data:text/html,<b>",
        "vbscript:x",
        "https://e.example",
        "//e.example",
    ),
    *("<script>", "</pre>", "<pre>", "<img src=x onerror=y>", "<a href='javascript:x'>", "<!--"),
    *('"', "'", "&#x3c;", "&lt;script&gt;", "&#x202e;", "\u202e", "&colon;", "&Tab;", "\t", "\\"),
    *("[a]: javascript:x\n", "[a]", "<javascript:x>", "<https://e.example>", "mailto:a@b.example"),
]


class TagReader(HTMLParser):
    """Collects the tags of HTML and their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))


def read_tags(html: str) -> list[tuple[str, dict[str, str]]]:
    reader = TagReader()
    reader.feed(html)
    return reader.tags


def check_safe(html: str) -> None:
    for tag, attributes in read_tags(html):
        assert tag not in FORBIDDEN_TAGS
        assert set(attributes) <= ALLOWED_ATTRIBUTES.get(tag, set())
        if tag == "a" and "href" in attributes:
            assert urlsplit(attributes["href"]).scheme.lower() in ALLOWED_SCHEMES
            assert attributes["rel"] == "noopener noreferrer nofollow"
    assert html == make_visible(html)


def render(text: str) -> str:
    html = render_markdown(text)
    assert html is not None
    return html


def test_markdown_is_formatted() -> None:
    html = render("# A\n\n**b** `c`\nd\n\n```py\nx < 1\n```\n\n|a|\n|-:|\n|1|\n\n3. x")
    assert "<h3>A</h3>" in html
    assert "<strong>b</strong> <code>c</code><br>" in html
    assert "<pre><code>x &lt; 1\n</code></pre>" in html
    assert '<td class="bb-md-right">1</td>' in html
    assert '<ol start="3">' in html


@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=30).map("".join))
def test_no_text_leads_to_active_content(text: str) -> None:
    html = render_markdown(text)
    if html is not None:
        check_safe(html)


@pytest.mark.parametrize(
    "url",
    [
        *("javascript:alert(1)", "JaVaScRiPt:alert(1)", "java&#x73;cript:alert(1)", "vbscript:x"),
        *("data:text/html,x", "data:image/png;base64,AA", "file:///etc/passwd", "ftp://e.example"),
        *("https://bank.example@evil.example/", "https://a\\@evil.example"),
        *("/admin/logout/", "//e.example/x", "x", "#x", "?x", "https:/e", "&Tab;javascript:x"),
    ],
)
def test_only_absolute_links_to_known_schemes_are_links(url: str) -> None:
    for text in (f"[x]({url})", f"[x](<{url}>)", f"<{url}>", f"[x]\n\n[x]: {url}"):
        assert "<a" not in render(text)


def test_links_say_nothing_about_the_page() -> None:
    [(_, attributes), *_] = [
        tag for tag in read_tags(render("[x](https://e.example)")) if "a" in tag
    ]
    assert attributes == {
        "href": "https://e.example",
        "target": "_blank",
        "rel": "noopener noreferrer nofollow",
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[https://a.example/](https://e.example/?q=x)", "https://a.example/ (e.example)"),
        (
            "[**b** ![i](https://a.example)](https://e.example:8/)",
            "b i (https://a.example) (e.example:8)",
        ),
        ("[write](mailto:a@b.example?subject=x)", "write (a@b.example?subject=x)"),
        ("[x][1]\n\n[1]: https://e.example 'https://bank.example'", "x (e.example)"),
        ("<https://e.example/ä>", "https://e.example/ä"),
        ("[https://e.example/a](https://e.example/a)", "https://e.example/a"),
        ("<a@b.example>", "a@b.example"),
    ],
)
def test_a_link_shows_where_it_leads(text: str, shown: str) -> None:
    assert re.sub("<[^>]+>", "", render(text)).strip() == shown


def test_an_image_is_shown_as_its_description_and_address() -> None:
    assert render("![a <b>](https://e.example/?q=1)") == (
        "<p>a &lt;b&gt; (https://e.example/?q=1)</p>\n"
    )


def test_html_is_shown_as_text() -> None:
    html = render("<div onclick=x><script>alert(1)</script></div>\n\na <img src=x onerror=y> b")
    assert [tag for tag, _ in read_tags(html)] == ["p", "p"]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


@pytest.mark.parametrize("text", ["a\u202eb", "a&#x202e;b", "a&#8238;b"])
def test_hidden_characters_are_visible(text: str) -> None:
    assert render(text) == "<p>a⟨U+202E⟩b</p>\n"


@pytest.mark.parametrize(
    "text",
    [
        "x" * (MAX_MARKDOWN_LENGTH + 1),
        "[" * (MAX_BRACKETS + 1),
        "> " * MAX_NESTING + "innermost",
        "\n".join("  " * level + "- a" for level in range(MAX_NESTING)),
        "|" + "a|" * 2000 + "\n|" + "-|" * 2000 + "\n" + "|x|\n" * 2000,
    ],
    ids=["long", "brackets", "quotes", "lists", "cells"],
)
def test_too_complex_text_is_left_to_the_caller(text: str) -> None:
    assert render_markdown(text) is None


def test_nothing_is_lost_below_the_limit_of_nesting() -> None:
    assert "innermost" in render("> " * (MAX_NESTING // 2) + "innermost")
