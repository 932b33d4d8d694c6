"""Pagination of lists, and invalid cursors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.exceptions import MCPError

from agents.gateway.catalog import PAGE_SIZE, build_page

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
