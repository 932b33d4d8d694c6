"""Bounded JSON request bodies.

In addition to invalid JSON, these are refused: more than 4 MiB, more than 64 levels, duplicate
fields, numbers outside the range of a double, NUL and lone surrogates (PostgreSQL can't store
them).
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from django.conf import settings
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.request import Request

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem

MAX_DEPTH = 64
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
PROBLEM_JSON = "application/problem+json"


class BodyTooLarge(Problem):
    """The body exceeds the size limit."""

    code = "body_too_large"
    status = 413
    title = "Request body too large"


class BoundedJSONParser(JSONParser):
    """DRF's JSON parser, strict and bounded."""

    def parse(
        self,
        stream: Any,
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the body's value; raises `BodyTooLarge` or `InvalidInput` (`invalid_json`)."""
        limit: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        raw = stream.read(limit + 1)
        if len(raw) > limit:
            raise BodyTooLarge(
                format_message("The request body is larger than {limit} bytes.", limit=limit),
                remedy="Split it into several requests.",
            )
        return parse_json(raw)


def parse_json(raw: bytes) -> Any:
    """Return the value of a JSON text; raises `InvalidInput` (code `invalid_json`)."""
    try:
        value = json.loads(
            raw.decode("utf-8"),
            parse_constant=_reject_constant,
            parse_float=_parse_finite_float,
            object_pairs_hook=_build_unique_object,
        )
    except RecursionError:
        raise _build_too_deep_error() from None
    except ValueError as error:
        raise InvalidInput(
            format_message("The request body isn't valid JSON: {error}.", error=error),
            code="invalid_json",
            remedy="Send one JSON object in UTF-8.",
        ) from None
    _check_value(value)
    return value


def _check_value(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _list_children(item)]
        if not level:
            return
    raise _build_too_deep_error()


def _list_children(item: Any) -> Iterable[Any]:
    if isinstance(item, str):
        _check_storable(item)
    if isinstance(item, list):
        return item
    if isinstance(item, dict):
        for name in item:
            _check_storable(name)
        return item.values()
    return ()


def _check_storable(text: str) -> None:
    if _UNSTORABLE.search(text):
        raise InvalidInput(
            "A string contains NUL or an unpaired surrogate.",
            code="invalid_json",
            remedy="Send valid Unicode text without the character U+0000.",
        )


def _build_too_deep_error() -> InvalidInput:
    return InvalidInput(
        format_message(
            "The request body is nested more than {max_depth} levels deep.", max_depth=MAX_DEPTH
        ),
        code="invalid_json",
        remedy="Send a less deeply nested value.",
    )


def _build_unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {duplicate!r} occurs twice")
    return unique


def _reject_constant(text: str) -> None:
    raise ValueError(f"{text} isn't a JSON number")


def _parse_finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]} is out of range")
    return number


class JSONContentNegotiation(BaseContentNegotiation):
    """Responds with JSON regardless of `Accept`; problems and event streams set their own type."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        """Return the parser for the body's content type, or None."""
        content_type = request.content_type.partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == content_type), None)

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[Any, str]:
        return renderers[0], renderers[0].media_type
