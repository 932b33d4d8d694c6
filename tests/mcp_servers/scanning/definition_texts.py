"""Our own malicious definitions, by the techniques of public taxonomies, and benign ones.

The techniques are from MCPTox (explicit and implicit triggers, changed parameters of another tool),
CyberArk (every field of a schema), Invariant Labs (shadowing, rug pulls), SAFE-MCP and OWASP MCP03;
the sentences are our own. The first half of each list was used to write the rules (`seen`); the
second half tests them (`unseen`).
"""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_DATA = tomllib.loads(Path(__file__).with_name("definitions.toml").read_text(encoding="utf-8"))
ATTACKS: dict[str, list[str]] = _DATA["attacks"]
FIELDS: list[dict[str, Any]] = [json.loads(one) for one in _DATA["fields"]]
ROUNDS: list[str] = _DATA["rounds"]
RESULT_ROUNDS: list[str] = _DATA["result_rounds"]
HONEST: list[str] = _DATA["honest"]
HONEST_FIELDS: list[dict[str, Any]] = [json.loads(one) for one in _DATA["honest_fields"]]


def seen(texts: Sequence[T]) -> Sequence[T]:
    """Return the half that was used to write the rules."""
    return texts[: len(texts) // 2]


def unseen(texts: Sequence[T]) -> Sequence[T]:
    """Return the half that tests the rules."""
    return texts[len(texts) // 2 :]


def described(text: str) -> dict[str, Any]:
    """Return a definition with `text` in its description."""
    return {"name": "sum_up", "description": f"Adds two numbers. {text}"}


def taking(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a definition with `schema` for its input."""
    return {"name": "sum_up", "description": "Adds two numbers.", "inputSchema": schema}
