"""A digest changes with every field and with nothing else."""

import copy
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.problems import InvalidInput
from bonobot.core.text.canonical_json import compute_json_digest

TOOL: dict[str, Any] = {
    "name": "send",
    "title": "Send",
    "description": "Sends a message.",
    "inputSchema": {
        "type": "object",
        "properties": {"to": {"type": "string", "maxLength": 64}},
        "required": ["to"],
    },
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": False, "title": "Send"},
    "icons": [{"src": "https://example.com/a.png", "sizes": ["48x48"]}],
    "_meta": {"ui": {"resourceUri": "ui://x"}},
    "somethingNew": None,
}

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
json_values = st.recursive(
    scalars.filter(lambda value: value not in (float("inf"), float("-inf"))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    paths = [path] if path else []
    for key, item in inner if isinstance(value, dict | list) else ():
        paths += list_paths(item, (*path, key)) if isinstance(item, dict | list) else [(*path, key)]
    return paths


@pytest.mark.parametrize("path", list_paths(TOOL), ids=str)
def test_a_change_of_any_field_changes_the_digest(path: tuple[Any, ...]) -> None:
    changed = copy.deepcopy(TOOL)
    parent: Any = changed
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = "another value"
    assert compute_json_digest(changed) != compute_json_digest(TOOL)
    del parent[path[-1]]
    assert compute_json_digest(changed) != compute_json_digest(TOOL)


def test_an_added_field_of_any_name_changes_the_digest() -> None:
    assert compute_json_digest(
        TOOL | {"execution": {"taskSupport": "optional"}}
    ) != compute_json_digest(TOOL)


@given(st.dictionaries(st.text(), json_values, max_size=6), st.randoms())
def test_the_order_of_keys_makes_no_difference(
    payload: dict[str, Any], order: random.Random
) -> None:
    keys = list(payload)
    order.shuffle(keys)
    assert compute_json_digest({key: payload[key] for key in keys}) == compute_json_digest(payload)


@given(json_values, json_values)
def test_different_values_have_different_digests(one: Any, other: Any) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (compute_json_digest(one) == compute_json_digest(other)) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["a", "b"], ["b", "a"]),
        (1, 1.0),
        (1, True),
        (0, False),
        (None, {}),
        ("", None),
        ("\u00e9", "e\u0301"),
        ("a", "a "),
        ("a", "\u0430"),
        ("a", "a\u200b"),
    ],
)
def test_look_alike_characters_have_different_digests(one: Any, other: Any) -> None:
    assert compute_json_digest({"x": one}) != compute_json_digest({"x": other})


def test_a_digest_is_the_same_in_every_process() -> None:
    assert compute_json_digest({"b": [1, "é"], "a": None}) == (
        "a44633ba036df25280e4fd9ef09da6f54dfe6d3611c755e31f993ab16f108f34"
    )


@pytest.mark.parametrize("payload", [{"x": float("nan")}, {"x": float("inf")}, {"x": object()}])
def test_values_that_arent_json_are_refused(payload: Any) -> None:
    with pytest.raises(InvalidInput) as raised:
        compute_json_digest(payload)
    assert raised.value.code == "definition_unreadable"


def test_lone_surrogates_have_a_digest() -> None:
    assert len(compute_json_digest({"x": "\ud83d"})) == 64
