"""URIs that match a template, including attempts to leave a segment."""

from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_servers.uri_templates import MAX_URI_LENGTH, list_variables, matches_template

BOOK = "lib://books/{book}"
FILES = "lib://files/{+path}"


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        (BOOK, "lib://books/emma"),
        (BOOK, "lib://books/war%20and%20peace"),
        (BOOK, "lib://books/Gr%C3%BC%C3%9Fe"),
        (BOOK, "lib://books/Grüße"),
        (BOOK, "lib://books/1.0..2.0"),
        ("demo://resource/dynamic/text/{resourceId}", "demo://resource/dynamic/text/1"),
        ("weather://{city}/current", "weather://São Paulo/current"),
        ("repo://{owner}/{repo}/issues/{number}", "repo://a/b-c.d/issues/7"),
        ("find://notes{?q,limit}", "find://notes?q=a&limit=3"),
        ("find://notes{?q,limit}", "find://notes?q=a"),
        ("find://notes{?q,limit}", "find://notes"),
        (FILES, "lib://files/a.txt"),
        ("a://x{/path*}", "a://x/one"),
        ("user://{email}", "user://me@example.com"),
    ],
)
def test_a_template_matches_its_uris(template, uri):
    assert matches_template(template, uri)


@pytest.mark.parametrize(
    "filled",
    [
        *("", "a/b", "..", ".", "...", "a\\b", "%2e%2e", "%2E.", "a%2Fb", "a%2fb", "a%5Cb"),
        *("%252e%252e", "a%252Fb", "a%25252Fb", "a%2525252525252fb", "..;x", "%2e%2e%3bx"),
        *(".. ", "%20..", "a%00b", "a\nb", "a%0d%0ab", "a?x=1", "a#b", "%c0%ae%c0%ae", "%uff0e"),
        *("\uff0e\uff0e", "\u2025", "a\uff0fb", "%EF%BC%8F", "a\u200bb", "%zz", "50%"),
        *("\xa0", "%20", "\uff052e\uff052e"),
    ],
)
def test_a_variable_cant_leave_its_segment(filled):
    assert not matches_template(BOOK, f"lib://books/{filled}")


@pytest.mark.parametrize(
    "uri",
    [
        *(
            "lib://book/emma",
            "LIB://books/emma",
            "xlib://books/emma",
            "lib://books",
            "lib://books/",
        ),
        "lib://books/" + "a" * MAX_URI_LENGTH,
    ],
)
def test_the_literal_parts_of_a_uri_are_compared_exactly(uri):
    assert not matches_template(BOOK, uri)


def test_undeclared_query_parameters_dont_match():
    assert not matches_template("find://notes{?q}", "find://notes?q=a&admin=1")
    assert not matches_template("find://notes{?q}", "find://notes?q=a&q=b")


def test_a_slash_needs_permission_and_dot_segments_never_match():
    assert not matches_template(FILES, "lib://files/a/b.txt")
    assert matches_template(FILES, "lib://files/a/b.txt", across=True)
    assert matches_template("a://x{/path*}", "a://x/one/two", across=True)
    for path in ("a/../b", "../b", "a/%2e%2e/b", "a/..%2fb", "a%2f..%2f..%2fb", "/etc/passwd"):
        assert not matches_template(FILES, f"lib://files/{path}", across=True), path


@pytest.mark.parametrize("template", ["lib://{a}{b}", "lib://{a", "lib://{}", "{+a}/{+b}", "{a:3}"])
def test_an_invalid_or_ambiguous_template_matches_nothing(template):
    assert not matches_template(template, "lib://x")
    assert list_variables(template) == ()


def test_the_variables_of_a_template_are_listed():
    assert list_variables("find://{kind}{?q,limit}") == ("kind", "q", "limit")


@given(st.text(min_size=1, max_size=30))
@example("\xa0")
def test_a_match_is_one_segment_after_any_number_of_decodings(filled):
    for value in (filled, quote(filled, safe=""), quote(quote(filled, safe=""), safe="")):
        if matches_template(BOOK, f"lib://books/{value}"):
            assert "/" not in filled
            assert "\\" not in filled
            assert filled.strip() not in (".", "..")
            assert filled.isprintable()


@given(st.text("abcXYZ019-_ äß", min_size=1, max_size=30).filter(str.strip))
def test_an_encoded_harmless_value_matches(filled):
    assert matches_template(BOOK, f"lib://books/{quote(filled, safe='')}")


def test_a_hostile_uri_is_matched_quickly():
    assert not matches_template("a://{a}-{b}-{c}-{d}-{e}x", "a://" + "-" * (MAX_URI_LENGTH - 10))
