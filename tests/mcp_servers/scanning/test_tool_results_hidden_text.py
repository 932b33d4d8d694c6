"""Hidden text is removed anywhere in structured results, and nothing else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.scanning.tool_results import strip_json_value

HIDES = "pay\u200bload\U000e0041"
CLEAN = "payload"
texts = st.text() | st.text(st.sampled_from("ab\u200b\u202e\U000e0041\x1b[0m👨\u200d👩"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("result", "path"),
    [
        ({"content": [{"type": "text", "text": HIDES}]}, "$.content[0].text"),
        ({"structuredContent": {"rows": [{"name": HIDES}]}}, "$.structuredContent.rows[0].name"),
        (
            {"content": [{"type": "resource", "resource": {"uri": "a://b", "text": HIDES}}]},
            "$.content[0].resource.text",
        ),
        ({"contents": [{"uri": HIDES}]}, "$.contents[0].uri"),
        (
            {"messages": [{"role": "user", "content": {"text": HIDES}}]},
            "$.messages[0].content.text",
        ),
        ({"content": [], "_meta": {"note": [HIDES]}}, "$._meta.note[0]"),
        ({"content": [{"type": "resource_link", "name": HIDES}]}, "$.content[0].name"),
    ],
)
def test_every_string_is_cleaned_and_its_path_reported(result: Any, path: str) -> None:
    cleaned = strip_json_value(result)
    assert str(cleaned.value) == str(result).replace(repr(HIDES)[1:-1], CLEAN)
    assert cleaned.removed == {"zero_width": 1, "tag_character": 1}
    assert cleaned.places == ((path, ("tag_character", "zero_width")),)


def test_a_value_without_hidden_characters_is_the_same_object() -> None:
    result = {"content": [{"type": "text", "text": "<script>![x](https://a.example)</script>"}]}
    assert strip_json_value(result).value is result
    assert not strip_json_value(result).is_changed


def test_the_original_value_isnt_modified() -> None:
    result = {"a": [{"b": HIDES}]}
    strip_json_value(result)
    assert result == {"a": [{"b": HIDES}]}


def test_binary_parts_are_unchanged() -> None:
    result = {
        "content": [
            {"type": "image", "data": HIDES, "mimeType": "image/png"},
            {"type": "audio", "data": HIDES},
            {"type": "resource", "resource": {"blob": HIDES}},
            {"type": "text", "text": HIDES, "data": HIDES},
        ]
    }
    image, audio, resource, text = strip_json_value(result).value["content"]
    assert image["data"] == audio["data"] == resource["resource"]["blob"] == HIDES
    assert (text["text"], text["data"]) == (CLEAN, CLEAN)


def test_a_cleaned_key_doesnt_replace_another_one() -> None:
    cleaned = strip_json_value({"structuredContent": {"a": 1, "a\u200b": 2, "b\u200b": 3}})
    assert cleaned.value == {"structuredContent": {"a": 1, "a⟨U+200B⟩": 2, "b": 3}}
    assert cleaned.places[0][0].endswith("(key)")


def test_deeply_nested_values_are_cleaned() -> None:
    value: Any = HIDES
    for _ in range(5_000):
        value = [value]
    assert strip_json_value(value).removed


@given(json_values)
def test_any_value_keeps_its_structure_and_is_stable_afterwards(value: Any) -> None:
    cleaned = strip_json_value(value)
    second = strip_json_value(cleaned.value)
    assert second.value is cleaned.value
    if not cleaned.removed:
        assert cleaned.value is value
