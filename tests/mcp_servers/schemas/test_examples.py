"""Example values of schemas."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.schemas.examples import build_example

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=12,
)
WORDS = st.sampled_from(
    ["type", "properties", "items", "required", "enum", "default", "anyOf", "const", "pattern"]
)


def test_an_example_has_what_is_required_and_defaults() -> None:
    schema = {
        "properties": {
            "zone": {"type": "string", "default": "UTC"},
            "n": {"type": "integer"},
            "deep": {
                "type": "object",
                "properties": {"x": {"enum": ["left", "right"]}},
                "required": ["x"],
            },
            "rest": {"type": "string"},
        },
        "required": ["n", "deep"],
    }
    assert build_example(schema) == {"zone": "UTC", "n": 0, "deep": {"x": "left"}}


@given(st.dictionaries(WORDS, JSON, max_size=4))
def test_any_schema_has_an_example(schema: dict[str, Any]) -> None:
    assert isinstance(build_example(schema), dict)
