"""JSON is read with line numbers, and invalid JSON is shown without possible secrets."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.problems import InvalidInput
from bonobot.core.text.json_reader import (
    describe_tolerated_syntax,
    parse_json_object,
    read_json,
    redact_line,
)

# NUL can't be stored, so no configuration has it.
TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def read_broken(text: str) -> InvalidInput:
    with pytest.raises(InvalidInput) as raised:
        read_json(text)
    assert raised.value.code == "broken_json"
    return raised.value


@given(json_values, st.sampled_from([None, 0, 2]), st.booleans())
def test_strict_json_is_parsed_like_the_standard_library(
    value: Any, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    reading = read_json(text)
    assert reading.root.to_python() == json.loads(text)
    assert list(describe_tolerated_syntax(reading)) == []


@given(st.text(st.sampled_from('{}[]",: \n01-.etrufalsn\\'), max_size=30))
def test_everything_that_the_standard_library_accepts_is_accepted(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        return
    assert read_json(text).root.to_python() == expected


def test_comments_and_trailing_commas_are_accepted_and_reported() -> None:
    reading = read_json('{ // one\n "a": [1, 2,], /* two\n lines */ "u": "http://x", }')
    assert reading.root.to_python() == {"a": [1, 2], "u": "http://x"}
    assert len(list(describe_tolerated_syntax(reading))) == 2


@pytest.mark.parametrize("text", ["[,]", "{,}", "[1,,2]", '{"a":1,,}', "[1 2]", '{"a" 1}'])
def test_other_extra_commas_are_refused(text: str) -> None:
    read_broken(text)


def test_fields_have_their_lines_and_duplicates_are_kept() -> None:
    root = read_json('{\n "a": 1,\n\n "b":\n  {"c": 2},\n "a": 3}').root
    assert [(name, line) for name, line, _ in root.fields] == [("a", 2), ("b", 4), ("a", 6)]
    assert root.get("a") is root.fields[2][2]
    assert root.get("z") is None


def test_the_repr_of_a_node_shows_no_value() -> None:
    assert "hunter2" not in repr(read_json('{"a": ["hunter2", {"b": "hunter2"}]}'))


@pytest.mark.parametrize(
    ("text", "line", "column", "expected"),
    [
        ('{\n "a": 1\n "b": 2\n}', 3, 2, "`,` or `}`"),
        ('{"a": }', 1, 7, "a value"),
        ('{"a": 1', 1, 8, "`,` or `}`"),
        ('{"a" 1}', 1, 6, "`:`"),
        ("{a: 1}", 1, 2, "double quotes"),
        ('{"a": "x\n"}', 1, 9, "isn't closed"),
        ('{"a": "x', 1, 7, "isn't closed"),
        ('{"a": "\\x"}', 1, 8, "escape sequence"),
        ("[1] 2", 1, 5, "unexpected content"),
        ("/* never", 1, 1, "a value"),
        ("[1]]", 1, 4, "unexpected content"),
        ('{"a": NaN}', 1, 7, "a value"),
        ('{"a": 01}', 1, 7, "a value"),
        ('{"a": tru}', 1, 7, "a value"),
    ],
)
def test_invalid_json_is_reported_with_line_and_column(
    text: str, line: int, column: int, expected: str
) -> None:
    problem = read_broken(text)
    assert (problem.extra["line"], problem.extra["column"]) == (line, column)
    assert expected in problem.detail
    assert problem.remedy


def test_common_mistakes_have_their_own_remedy() -> None:
    assert "straight" in read_broken("{\u201ca\u201d: 1}").remedy
    assert "double quotes" in read_broken("{'a': 1}").remedy
    assert "too early" in read_broken('{"a": [1').remedy


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('  "Authorization": "Bearer sk-1",', '"Authorization": "…",'),
        ('"token": sk-1"', '"token": …"…"'),
        ("'token': 'sk-1'", "…: …"),
        ('"Authorization: "Bearer sk-1",', '"…"… …"…"'),
        ('"PIN": 123456, "enabled": true', '"…": …, "enabled": true'),
        ('"X-Api-Key": "sk-1": {', '"…": "…": {'),
    ],
)
def test_a_line_is_shown_without_its_values(line: str, shown: str) -> None:
    assert redact_line(line) == shown
    assert "sk-1" not in redact_line(line)


@pytest.mark.parametrize(
    ("text", "code"),
    [("", "nothing_to_import"), ("[" * 65, "too_deep"), ("x" * 300_000, "too_large")],
    ids=["empty", "deep", "large"],
)
def test_limits_have_their_own_codes(text: str, code: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read_json(text)
    assert raised.value.code == code


def test_a_large_text_is_parsed_in_linear_time() -> None:
    for piece in ("/*", "//\n", '{"a":', "[1,", "1" * 300, '"\\', " ", "\n"):
        with pytest.raises(InvalidInput):
            read_json(piece * (200_000 // len(piece)))


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b"[1]", {}),
        (b"{'a': 1}", {}),
        (b"\xff", {}),
        (b'{"a":' * 100_000, {}),
    ],
)
def test_only_a_strict_json_object_of_a_response_is_read(
    content: bytes, value: dict[str, int]
) -> None:
    assert parse_json_object(content) == value
