"""Completions: of the arguments of skills, and those that servers return. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Any

from mcp_servers.scanning import clean_result

# MCP's limit on the number of completion values, and our limit on their length.
MAX_COMPLETIONS = 100
MAX_COMPLETION_LENGTH = 512


def clean_completion(result: dict[str, Any]) -> dict[str, Any]:
    """Return a completion that is safe to show: at most 100 short values without hidden content."""
    completion = result.get("completion")
    fields = completion if isinstance(completion, dict) else {}
    values = fields.get("values")
    texts = (
        [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
    )
    cleaned_values = [
        clean_result(text[:MAX_COMPLETION_LENGTH]).text for text in texts[:MAX_COMPLETIONS]
    ]
    cleaned: dict[str, Any] = {"values": cleaned_values}
    if isinstance(total := fields.get("total"), int):
        cleaned["total"] = total
    cleaned["hasMore"] = fields.get("hasMore") is True or len(texts) > len(cleaned_values)
    return result | {"completion": cleaned}


def complete_skill_argument(
    choices: Mapping[str, Sequence[str]], argument: str, prefix: str
) -> list[str]:
    """Return the choices of a skill's argument that start with `prefix`, ignoring case."""
    return [
        choice
        for choice in choices.get(argument, ())
        if choice.casefold().startswith(prefix.casefold())
    ]
