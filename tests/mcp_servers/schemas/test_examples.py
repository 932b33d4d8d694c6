"""Example values of schemas."""

from typing import Any

from hypothesis import given

from mcp_servers.schemas.examples import build_example
from tests.mcp_servers.any_schema import ANY_SCHEMA


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


@given(ANY_SCHEMA)
def test_any_schema_has_an_example(schema: dict[str, Any]) -> None:
    assert isinstance(build_example(schema), dict)
