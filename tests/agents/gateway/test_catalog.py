"""Pagination of lists, and invalid cursors."""

import json
from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.exceptions import MCPError

from agents.gateway.catalog import PAGE_SIZE, DeclarationList, build_page

BAD = -32602


@given(st.integers(0, 3 * PAGE_SIZE + 1))
def test_all_pages_together_are_the_complete_list(count: int) -> None:
    declarations = tuple({"name": str(number)} for number in range(count))
    listed: list[dict[str, str]] = []
    cursor, pages = None, 0
    while True:
        page = build_page(declarations, "tools", cursor)
        assert len(page["tools"]) <= PAGE_SIZE
        listed += page["tools"]
        pages += 1
        if (cursor := page.get("nextCursor")) is None:
            break
    assert (tuple(listed), pages) == (declarations, max(1, -(-count // PAGE_SIZE)))


@given(
    st.one_of(st.text(), st.integers(), st.booleans(), st.binary(), st.lists(st.text(), max_size=2))
)
def test_no_cursor_reveals_more_than_the_list(cursor: object) -> None:
    declarations = ({"name": "one"},)
    try:
        page = build_page(declarations, "tools", cursor)
    except MCPError as error:
        code = error.error.code
    else:
        code = BAD
        assert page["tools"] in ([], list(declarations))
    assert code == BAD


@pytest.mark.parametrize("cursor", ["", "x", "NTAwMQ==", "LTE=", "OTk5OTk5OTk5OTk=", "ä", 7])
def test_a_cursor_of_another_list_is_refused(cursor: object) -> None:
    with pytest.raises(MCPError) as caught:
        build_page(({"name": "one"},), "tools", cursor)
    assert caught.value.error.code == BAD


@given(st.integers(0, 2 * PAGE_SIZE), st.integers(0, 2 * PAGE_SIZE + 2))
def test_pages_that_are_kept_are_those_that_are_built(count: int, start: int) -> None:
    declarations = tuple({"name": str(number)} for number in range(count))
    kept = DeclarationList(declarations)
    cursor = urlsafe_b64encode(str(start).encode()).decode()
    if start > count:
        with pytest.raises(MCPError):
            build_page(kept, "tools", cursor)
        return
    pages = [build_page(kept, "tools", cursor) for _ in range(2)]
    assert pages == [build_page(declarations, "tools", cursor)] * 2
    assert len(kept._pages) <= 1


def test_a_page_is_encoded_once() -> None:
    declarations = DeclarationList(({"name": "é"}, {"name": "two"}))
    first, second = (build_page(declarations, "tools", None)["tools"] for _ in range(2))
    assert json.loads(first.encoded) == list(declarations)
    assert first.encoded is second.encoded
