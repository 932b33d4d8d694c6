"""The JSON Schema of a prompt's arguments, which servers declare as a list of names."""

from collections.abc import Iterable, Mapping
from typing import Any


def build_prompt_schema(arguments: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the JSON Schema of a prompt's declared arguments, all of them strings."""
    declared = tuple(arguments)
    return {
        "type": "object",
        "properties": {
            argument["name"]: {
                "type": "string",
                "description": str(argument.get("description") or ""),
            }
            for argument in declared
        },
        "required": [argument["name"] for argument in declared if argument.get("required") is True],
        "additionalProperties": False,
    }
