"""Differences between an approved definition and the current one."""

from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.admin.definition_diff import DiffLine, FieldDiff, diff_definitions

TEXTS = st.text(alphabet="ab .\n", max_size=30)


def test_the_changed_words_of_a_text_are_marked() -> None:
    before, after = {"description": "Create an issue."}, {"description": "Create an issue. Now."}
    assert diff_definitions(before, after) == [
        FieldDiff(
            "description",
            (
                DiffLine("removed", (("Create an issue.", False),)),
                DiffLine("added", (("Create an issue.", False), (" Now.", True))),
            ),
        )
    ]


def test_only_fields_that_differ_are_listed_and_texts_come_first() -> None:
    before = {"name": "x", "inputSchema": {"type": "object"}, "description": "a"}
    after = {"name": "x", "inputSchema": {"type": "object", "maxProperties": 1}, "title": "X"}
    diffs = diff_definitions(before | {"title": "Y"}, after)
    assert [diff.name for diff in diffs] == ["title", "description", "inputSchema"]
    kinds = {line.kind for line in diffs[2].lines}
    assert kinds == {"added", "removed", "same"}
    assert [line.kind for line in diffs[1].lines] == ["removed"]


@given(TEXTS, TEXTS)
def test_both_texts_are_shown_completely(before: str, after: str) -> None:
    for diff in diff_definitions({"description": before}, {"description": after}):
        removed, added = diff.lines
        assert "".join(text for text, _changed in removed.pieces) == before
        assert "".join(text for text, _changed in added.pieces) == after
