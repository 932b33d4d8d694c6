"""A version reports which parts of an object changed."""

from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.db.object_version import (
    compute_version,
    has_part,
    is_current,
    is_same_part,
    list_changed_parts,
)

PARTS = {"mode": "all", "deny": ["bash"], "limit": 7}


def test_a_version_reports_changed_and_new_parts():
    version = compute_version(PARTS)
    now = PARTS | {"deny": [], "ask": ["read"]}
    assert is_current(PARTS, version)
    assert not is_current(now, version)
    assert list_changed_parts(now, version) == ["deny", "ask"]
    assert has_part("deny", version)
    assert not has_part("ask", version)
    assert is_same_part("deny", ["bash"], version)


def test_a_removed_part_changes_the_version():
    version = compute_version(PARTS)
    assert not is_current({"mode": "all"}, version)


def test_a_value_that_moves_to_another_part_changes_the_version():
    assert not is_same_part("ask", ["bash"], compute_version(PARTS))


def test_a_version_is_an_etag_and_reveals_no_value():
    version = compute_version(PARTS)
    assert version.isascii()
    assert '"' not in version
    assert "bash" not in version


@given(st.text(max_size=200))
def test_any_other_text_is_a_different_version(text: str):
    assert not is_current(PARTS, text)
    assert list_changed_parts(PARTS, text) == list(PARTS)


@given(st.dictionaries(st.text(max_size=10), st.integers() | st.text(max_size=10), max_size=8))
def test_the_order_of_parts_doesnt_change_the_version(parts: dict[str, int | str]):
    assert compute_version(parts) == compute_version(dict(reversed(parts.items())))
