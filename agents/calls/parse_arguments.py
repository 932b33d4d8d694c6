"""Parse the arguments of a call that a person wrote as JSON."""

import json
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.json_reader import describe_json_error

EXAMPLE_REMEDY = format_message(
    "Enter a JSON object, such as {example}.", example='{"city": "Berlin"}'
)


def parse_arguments(
    text: str, *, field: str = "arguments", remedy: str = EXAMPLE_REMEDY
) -> dict[str, Any]:
    """Return the arguments; raises `InvalidInput` (`broken_json`, `invalid_arguments`)."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            format_message(
                "The arguments aren't valid JSON: {error}.", error=describe_json_error(error)
            ),
            code="broken_json",
            field=field,
            remedy=remedy,
        ) from None
    if not isinstance(arguments, dict):
        raise InvalidInput(
            "The arguments must be a JSON object.",
            code="invalid_arguments",
            field=field,
            remedy=remedy,
        )
    return arguments
