"""Completions of servers: at most 100 short values without hidden content. No I/O."""

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
