"""One text for one JSON value."""

import datetime
import functools
import hashlib
import json
import math
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.text.canonical_json import compute_digest, to_canonical_json, to_sorted_json

TEXTS = st.text() | st.text(st.characters(max_codepoint=0x7F))
SCALARS = st.none() | st.booleans() | st.integers() | TEXTS | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS.filter(lambda value: not isinstance(value, float) or math.isfinite(value)),
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)


@given(VALUES)
def test_the_text_parses_to_the_same_value(value: Any) -> None:
    text = to_canonical_json(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert to_canonical_json(json.loads(text)) == text


@given(st.dictionaries(st.text(), SCALARS.filter(lambda v: v not in (math.inf, -math.inf))))
def test_the_order_of_keys_makes_no_difference(fields: dict[str, Any]) -> None:
    assert to_canonical_json(dict(reversed(fields.items()))) == to_canonical_json(fields)


def test_there_are_no_spaces_and_only_ascii() -> None:
    assert (
        to_canonical_json({"b": [1, "é\u2028"], "a": None}) == '{"a":null,"b":[1,"\\u00e9\\u2028"]}'
    )


@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, math.inf, [-math.inf], {"a": math.nan}, {1, 2}, b"x", {"a": 1, 2: 3}),
        *(uuid.UUID(int=1), {"id": uuid.UUID(int=1)}, [datetime.date(2026, 1, 1)]),
    ],
)
def test_values_that_json_cant_represent_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_canonical_json(value)


def test_an_endlessly_nested_value_is_refused() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ValueError, match="too deeply"):
        to_canonical_json(value)


def test_a_digest_is_a_hexadecimal_sha256() -> None:
    assert compute_digest("é") == hashlib.sha256("é".encode()).hexdigest()


@given(VALUES)
def test_the_text_is_what_the_standard_library_writes(value: Any) -> None:
    standard = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
    assert to_canonical_json(value) == to_sorted_json(value) == standard.encode(value)


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1e16, "b": [1e-7, -0.0], "c": 2**64, "d": -(2**63) - 1},
        *({"a": "\x7f"}, {"\x00": "\x1f"}, {"a": "é"}, {"a": (1, 2)}, {"a": "\ud800"}, {}, []),
        functools.reduce(lambda inner, _: [inner], range(400), [1]),
    ],
)
def test_what_the_fast_encoder_writes_differently_is_written_as_before(value: Any) -> None:
    assert to_canonical_json(value) == json.dumps(value, sort_keys=True, separators=(",", ":"))


def test_nan_and_infinity_are_written_only_on_request() -> None:
    assert to_sorted_json([math.nan, -math.inf]) == "[NaN,-Infinity]"
    with pytest.raises(ValueError, match="float"):
        to_canonical_json(math.nan)


def test_a_circular_value_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="deeply"):
        to_canonical_json(endless)
