"""Structured output: the JSON Schema of a final answer, and its check.

A schema comes from the author of an agent or a message, and the answer from a model, so
both are checked within the limits of `mcp_servers.schemas`.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text.canonical_json import to_sorted_json
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.schemas import InvalidArguments, classify_schema
from mcp_servers.schemas.subprocess_pool import check_json_value

MAX_OUTPUT_SCHEMA_SIZE = 16_384
# How often a model is asked again after an answer that violates the schema.
MAX_OUTPUT_RETRIES = 2
# The code of the notice that asks the model again.
OUTPUT_REJECTED = "output_rejected"
MAX_VIOLATION_LENGTH = 500
_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)

OutputSchema = Mapping[str, Any]


class OutputSchemaViolation(Problem):
    """The final answer doesn't match the output schema, also after the model was asked again."""

    code = "output_schema_violation"
    status = 422
    title = "The answer doesn't match the output schema"


def check_output_schema(schema: OutputSchema) -> dict[str, Any]:
    """Return a usable output schema; raises `InvalidInput` (`unusable_output_schema`).

    It must be a JSON Schema of an object within the limits of inline checks.
    """
    reason = ""
    if schema.get("type") != "object":
        reason = 'The `type` of the schema must be "object".'
    elif (verdict := classify_schema(dict(schema))).verdict != "inline":
        reason = verdict.reason
    elif len(to_sorted_json(schema)) > MAX_OUTPUT_SCHEMA_SIZE:
        reason = format_message(
            "The schema has more than {size:,} characters.", size=MAX_OUTPUT_SCHEMA_SIZE
        )
    if reason:
        raise InvalidInput(
            format_message("The output schema can't be used. {reason}", reason=reason),
            code="unusable_output_schema",
            field="output_schema",
            remedy="Provide a small JSON Schema without recursion: "
            '{"type": "object", "properties": {"title": {"type": "string"}}}.',
        )
    return dict(schema)


def map_texts(value: Any, convert: Callable[[str], str]) -> Any:
    """Return a checked schema with its strings converted, except property names."""
    if isinstance(value, str):
        return convert(value)
    if isinstance(value, Mapping):
        return {name: map_texts(item, convert) for name, item in value.items()}
    return [map_texts(item, convert) for item in value] if isinstance(value, list) else value


def build_output_instructions(schema: OutputSchema) -> str:
    """Return the part of the system prompt that asks for the output."""
    return (
        "## Final answer\n"
        "When you have finished, answer with one JSON value that matches this JSON Schema, and "
        f"nothing else: no explanation, no code fence.\n{to_sorted_json(schema)}"
    )


async def parse_output(schema: OutputSchema, text: str) -> Any:
    """Return the value of a final answer; raises `OutputSchemaViolation` if it doesn't match.

    A value that can't be checked within the limits doesn't match either.
    """
    try:
        value = _parse_json(text)
    except (ValueError, RecursionError):
        raise _build_violation("The answer isn't JSON.") from None
    try:
        await check_json_value(schema, value, classify_schema(dict(schema)))
    except InvalidArguments as violation:
        raise _build_violation(f"{violation.field}: {violation}") from None
    except InvalidInput as problem:
        raise _build_violation(str(problem)) from None
    return value


def build_correction(violation: OutputSchemaViolation) -> dict[str, str]:
    """Return the payload of the notice that asks the model again, with the text for the model."""
    detail = str(violation)
    return {
        "code": OUTPUT_REJECTED,
        "text": f"{detail} The model is asked again.",
        "correction": f"{detail} Answer again, only with JSON that matches the schema.",
    }


async def check_final_answer(
    schema: OutputSchema | None, text: str, rejected_count: int
) -> tuple[dict[str, Any], dict[str, str] | None]:
    """Return the fields of the end step, or the notice that asks the model again.

    Raises `OutputSchemaViolation` after `MAX_OUTPUT_RETRIES` rejected answers.
    """
    if not schema:
        return {}, None
    try:
        return {"output": await parse_output(schema, text)}, None
    except OutputSchemaViolation as violation:
        if rejected_count >= MAX_OUTPUT_RETRIES:
            raise
        return {}, build_correction(violation)


def _parse_json(text: str) -> Any:
    code_block = _FENCED.fullmatch(text.strip())
    return json.loads(code_block[1] if code_block else text, parse_constant=_reject_constant)


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} isn't JSON")


def _build_violation(detail: str) -> OutputSchemaViolation:
    return OutputSchemaViolation(
        make_visible(detail, MAX_VIOLATION_LENGTH),
        remedy="Simplify the output schema, or choose another model. The answer's text is in the "
        "session.",
    )
