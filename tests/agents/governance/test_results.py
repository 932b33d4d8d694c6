"""Results as models see them: text, cleaned, bounded, with a way to read on."""

import json

from hypothesis import given
from hypothesis import strategies as st

from agents.governance.results import readable


def text_result(*texts):
    return {"content": [{"type": "text", "text": text} for text in texts]}


def test_text_parts_are_joined():
    assert readable(text_result("one", "two"), limit=100, result_id="x").text == "one\ntwo"


def test_structured_content_is_shown_where_there_is_no_text():
    shown = readable({"content": [], "structuredContent": {"a": 1}}, limit=100, result_id="x")
    assert json.loads(shown.text) == {"a": 1}


def test_images_and_resources_are_named_with_their_size():
    parts = [
        {"type": "image", "mimeType": "image/png", "data": "AAAA"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
        {"type": "resource_link", "uri": "file:///b"},
    ]
    shown = readable({"content": parts}, limit=1000, result_id="x").text
    assert shown.splitlines() == ["[image image/png, 3 bytes]", "inside", "[resource file:///b]"]


def test_a_long_result_is_cut_and_says_how_to_read_on():
    shown = readable(text_result("a" * 5000), limit=1024, result_id="the-id")
    assert shown.text.startswith("a" * 1024)
    assert "the-id" in shown.text
    assert len(shown.whole) == 5000


def test_invisible_characters_are_removed_and_counted():
    shown = readable(text_result("see\u200b this\U000e0041"), limit=1000, result_id="x")
    assert shown.text == "see this"
    assert shown.removed == 2


@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.integers(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_whatever_a_server_answers_can_be_read(answer):
    shown = readable({"content": answer}, limit=100, result_id="x")
    assert isinstance(shown.text, str)


@given(st.lists(st.text()), st.integers(min_value=1, max_value=50))
def test_what_is_kept_never_exceeds_the_limit(texts, limit):
    shown = readable(text_result(*texts), limit=limit, result_id="x")
    kept = shown.text.split("\n[cut:")[0] if shown.whole else shown.text
    assert len(kept.encode()) <= limit
