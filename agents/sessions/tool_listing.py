"""List tools with their parameters in the system prompt."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agents.llm.interface import ToolSpec
from agents.llm.prompted_tools import escape_tags
from agents.llm.tool_schemas import simplify_schema
from mcp_servers.scanning.description_markup import strip_markup

MAX_LISTED_PARAMETERS = 50
# Maximum length of a parameter's description and of its allowed values, in characters.
MAX_PARAMETER_TEXT = 300


def list_tool_parameters(tools: Iterable[ToolSpec]) -> Iterator[str]:
    """Yield the lines of each tool: its name and description, then its parameters."""
    for tool in tools:
        yield f"- {tool.name}: {_write_line(tool.description)}".rstrip(": ")
        schema = simplify_schema(tool.parameters)
        required = schema.get("required", ())
        properties = list(schema.get("properties", {}).items())
        for name, parameter in properties[:MAX_LISTED_PARAMETERS]:
            facts = ", ".join(_list_facts(parameter, is_required=name in required))
            description = _write_line(str(parameter.get("description", "")))
            yield f"  - {_write_line(name)} ({facts}): {description[:MAX_PARAMETER_TEXT]}".rstrip(
                ": "
            )
        if (hidden := len(properties) - MAX_LISTED_PARAMETERS) > 0:
            yield f"  - {hidden} more parameters"


def _list_facts(parameter: Mapping[str, Any], *, is_required: bool) -> Iterator[str]:
    """Yield the type of a parameter, whether it is required, and its allowed values."""
    yield _name_type(parameter)
    if is_required:
        yield "required"
    if enum := parameter.get("enum"):
        values = ", ".join(_write_json(value) for value in enum)
        yield f"one of {values}"[:MAX_PARAMETER_TEXT]
    if "default" in parameter:
        yield f"default {_write_json(parameter['default'])}"[:MAX_PARAMETER_TEXT]


def _name_type(parameter: Mapping[str, Any]) -> str:
    name = parameter.get("type")
    if name == "array" and isinstance(items := parameter.get("items"), Mapping):
        return f"array of {_name_type(items)}"
    if isinstance(name, str):
        return name
    members = [_name_type(member) for member in parameter.get("anyOf", ())]
    return " or ".join(dict.fromkeys(members)) or "any type"


def _write_json(value: Any) -> str:
    return _write_line(json.dumps(value, ensure_ascii=False))


def _write_line(text: str) -> str:
    """Return a server's text on one line, without markup."""
    return escape_tags(" ".join(strip_markup(text).split()))
