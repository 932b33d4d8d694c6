"""What a person hands to a verb: inputs of runs as JSON, texts in files."""

import json
import sys
from pathlib import Path
from typing import Any

from bonobot.lib.problems import Invalid

STDIN = "-"


def read_inputs(text: str, field: str) -> dict[str, Any]:
    """Return one JSON object, `-` read from standard input; raises `Invalid` naming the field."""
    try:
        found = json.loads(sys.stdin.read() if text == STDIN else text)
    except ValueError as error:
        raise Invalid(
            f"The inputs are not valid JSON: {error}",
            code="broken_json",
            field=field,
            remedy="""Write one object: '{"title": "disk full"}'.""",
        ) from None
    if isinstance(found, dict):
        return found
    raise Invalid("The inputs are no JSON object.", field=field, remedy="Write {…}.")


def read_text(name: str | None, field: str = "--file") -> str | None:
    """Return a text file's content, `-` read from standard input; None where none is named.

    Raises `Invalid` (`unusable_file`) naming the field.
    """
    if name is None:
        return None
    try:
        return sys.stdin.read() if name == STDIN else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(
            f"{name!r} can't be read: {error}",
            code="unusable_file",
            field=field,
            remedy="Name a text file.",
        ) from None
