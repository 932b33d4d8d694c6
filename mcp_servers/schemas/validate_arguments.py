"""Check arguments against a schema, with a fast path (pure).

The fast path agrees with `jsonschema` (property-tested) and is about ten times faster; schemas with
other keywords don't use it. Error messages always come from `jsonschema`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from jsonschema.exceptions import best_match

from bonobot.core.i18n.messages import format_message
from bonobot.core.object_identity_cache import ObjectIdentityCache
from bonobot.core.problems import InvalidInput
from mcp_servers.schemas.classify_schema import (
    DEEPEST,
    SchemaCost,
    SchemaVerdict,
    ValueSize,
    measure,
    read,
)
from mcp_servers.schemas.dialects import (
    Validator,
    build_validator,
    list_additional_names,
    matches_pattern,
)
from mcp_servers.schemas.error_messages import ArgumentViolation, build_violation

Fits = Callable[[Any], bool]

# Values of `$schema` for dialects in which the supported keywords mean the same.
DIALECTS = frozenset(
    f"http{secure}://json-schema.org/{name}"
    for secure in ("", "s")
    for name in ("draft/2020-12/schema", "draft-07/schema", "draft-07/schema#")
)
# Annotations, which don't affect validity.
_REMARKS = frozenset(
    {
        *("title", "description", "default", "examples", "$comment"),
        *("format", "deprecated", "readOnly", "writeOnly"),
    }
)


class _UnknownKeyword(Exception):  # not an error: `jsonschema` handles it
    """The schema has a keyword that the fast path doesn't support."""


def build_fast_test(schema: Any) -> Fits | None:
    """Return a fast validity test for `schema`, or None if it needs `jsonschema`."""
    if not isinstance(schema, dict):
        return None
    rest = dict(schema)
    dialect = rest.pop("$schema", None)
    if dialect is not None and dialect not in DIALECTS:
        return None
    try:
        return _build_test(rest)
    except (_UnknownKeyword, RecursionError):
        return None


def _build_test(schema: Any) -> Fits:
    if isinstance(schema, bool):
        return _accept_anything if schema else _reject_everything
    if not isinstance(schema, dict):
        raise _UnknownKeyword
    every = tuple(_build_keyword_tests(schema))
    if len(every) < 2:
        return every[0] if every else _accept_anything

    def fits(value: Any) -> bool:
        for test in every:  # noqa: SIM110  # `all` of a generator costs twice as much
            if not test(value):
                return False
        return True

    return fits


def _build_keyword_tests(schema: Mapping[str, Any]) -> Iterator[Fits]:
    for keyword, said in schema.items():
        if keyword in _REMARKS or (keyword == "additionalProperties" and said is True):
            continue
        make = _KEYWORDS.get(keyword)
        if make is None:
            raise _UnknownKeyword
        yield make(said, schema)


def _accept_anything(_value: Any) -> bool:
    return True


def _reject_everything(_value: Any) -> bool:
    return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


_TYPES: dict[str, Fits] = {
    "string": lambda value: isinstance(value, str),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _is_number,
    "integer": _is_integer,
}


def _build_type_test(said: Any, _schema: Any) -> Fits:
    names = [said] if isinstance(said, str) else said
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise _UnknownKeyword
    if not names or not all(name in _TYPES for name in names):
        raise _UnknownKeyword
    if len(names) == 1:
        return _TYPES[names[0]]
    tests = tuple(_TYPES[name] for name in names)
    return lambda value: any(test(value) for test in tests)


def _build_properties_test(said: Any, _schema: Any) -> Fits:
    if not isinstance(said, dict):
        raise _UnknownKeyword
    tests = {name: _build_test(inner) for name, inner in said.items()}
    told = {name: test for name, test in tests.items() if test is not _accept_anything}

    def fits(value: Any) -> bool:
        if isinstance(value, dict):
            for name, test in told.items():
                if name in value and not test(value[name]):
                    return False
        return True

    return fits


def _build_required_test(said: Any, _schema: Any) -> Fits:
    names = _parse_names(said)

    def fits(value: Any) -> bool:
        if isinstance(value, dict):
            for name in names:
                if name not in value:
                    return False
        return True

    return fits


def _build_additional_test(said: Any, schema: Mapping[str, Any]) -> Fits:
    properties = schema.get("properties", {})
    if "patternProperties" in schema or not isinstance(properties, dict):
        raise _UnknownKeyword
    known = {"properties": properties}
    test = _build_test(said)

    def fits(value: Any) -> bool:
        if not isinstance(value, dict) or value.keys() <= properties.keys():
            return True
        return all(test(value[name]) for name in list_additional_names(value, known))

    return fits


def _build_items_test(said: Any, schema: Mapping[str, Any]) -> Fits:
    if "prefixItems" in schema:
        raise _UnknownKeyword
    test = _build_test(said)
    return lambda value: not isinstance(value, list) or all(map(test, value))


def _build_enum_test(said: Any, _schema: Any) -> Fits:
    if not isinstance(said, list):
        raise _UnknownKeyword
    # In JSON, 1 equals 1.0 but not true: Python sets differ only for booleans.
    if not all(one is None or isinstance(one, str) or _is_number(one) for one in said):
        raise _UnknownKeyword
    members = frozenset(said)

    def fits(value: Any) -> bool:
        plain = value is None or isinstance(value, str) or _is_number(value)
        return plain and value in members

    return fits


def _build_const_test(said: Any, schema: Any) -> Fits:
    return _build_enum_test([said], schema)


def _bound(kind: Fits, holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Fits]:
    def make(said: Any, _schema: Any) -> Fits:
        if not _is_number(said):
            raise _UnknownKeyword
        return lambda value: not kind(value) or holds(value, said)

    return make


def _build_pattern_test(said: Any, _schema: Any) -> Fits:
    if not isinstance(said, str):
        raise _UnknownKeyword
    return lambda value: not isinstance(value, str) or matches_pattern(said, value)


def _build_any_test(said: Any, _schema: Any) -> Fits:
    tests = _build_subschema_tests(said)
    return lambda value: any(test(value) for test in tests)


def _build_all_test(said: Any, _schema: Any) -> Fits:
    tests = _build_subschema_tests(said)
    return lambda value: all(test(value) for test in tests)


def _build_subschema_tests(said: Any) -> tuple[Fits, ...]:
    if not isinstance(said, list) or not said:
        raise _UnknownKeyword
    return tuple(map(_build_test, said))


def _parse_names(said: Any) -> tuple[str, ...]:
    if not isinstance(said, list) or not all(isinstance(one, str) for one in said):
        raise _UnknownKeyword
    return tuple(said)


_TEXT, _OBJECT, _ARRAY = _TYPES["string"], _TYPES["object"], _TYPES["array"]
_KEYWORDS: dict[str, Callable[[Any, Any], Fits]] = {
    "type": _build_type_test,
    "properties": _build_properties_test,
    "required": _build_required_test,
    "additionalProperties": _build_additional_test,
    "items": _build_items_test,
    "enum": _build_enum_test,
    "const": _build_const_test,
    "pattern": _build_pattern_test,
    "anyOf": _build_any_test,
    "allOf": _build_all_test,
    "minimum": _bound(_is_number, lambda value, least: value >= least),
    "maximum": _bound(_is_number, lambda value, most: value <= most),
    "exclusiveMinimum": _bound(_is_number, lambda value, least: value > least),
    "exclusiveMaximum": _bound(_is_number, lambda value, most: value < most),
    "minLength": _bound(_TEXT, lambda value, least: len(value) >= least),
    "maxLength": _bound(_TEXT, lambda value, most: len(value) <= most),
    "minItems": _bound(_ARRAY, lambda value, least: len(value) >= least),
    "maxItems": _bound(_ARRAY, lambda value, most: len(value) <= most),
    "minProperties": _bound(_OBJECT, lambda value, least: len(value) >= least),
    "maxProperties": _bound(_OBJECT, lambda value, most: len(value) <= most),
}


INLINE_CHARACTERS = 16 * 1024
INLINE_VALUES = 1_000
# Steps per value × values, and per character × characters: at most about 35 ms each.
INLINE_COST = 10_000
INLINE_MATCHING = 4_000_000
MOST_VALUES = 100_000
MOST_COMPLAINTS = 5
_MOST_ERRORS = 50


class InvalidArguments(InvalidInput):
    """The arguments don't match the tool's input schema; `field` is the JSON path."""

    code = "invalid_arguments"
    title = "The arguments don't fit the tool"


class ConfinementNeeded(Exception):
    """Checking inline could take too long; `subprocess_pool` does it in a child process."""


@dataclass(frozen=True, slots=True)
class _CompiledSchema:
    validator: Validator
    cost: SchemaCost
    fits: Fits | None


def check_arguments(schema: Any, arguments: Any, judgement: SchemaVerdict) -> None:
    """Check `arguments` inline, within about 70 ms.

    Raises `InvalidArguments`, `InvalidInput` (`schema_refused`), or `ConfinementNeeded` if the
    schema, the arguments or both together exceed the inline limits.
    """
    size = measure_arguments(arguments)
    if judgement.verdict == "refused":
        raise InvalidInput(
            f"The tool's input schema can't be used. {judgement.reason}".strip(),
            code="schema_refused",
            remedy="The server has to change it; the tool's page shows where.",
        )
    if judgement.verdict != "inline":
        raise ConfinementNeeded(judgement.reason)
    compiled = _compile_inline(schema, size)
    if compiled.fits is not None and compiled.fits(arguments):
        return
    if (found := _find_first_violation(compiled.validator, arguments)) is not None:
        raise found


def is_valid_for_schema(schema: Any, arguments: Any) -> bool:
    """Tell whether `arguments` match a trusted schema, within the inline limits.

    Raises `InvalidArguments` if they are not a JSON object, and `ConfinementNeeded`.
    """
    compiled = _compile_inline(schema, measure_arguments(arguments))
    if compiled.fits is not None:
        return compiled.fits(arguments)
    return bool(compiled.validator.is_valid(arguments))


def _compile_inline(schema: Any, size: ValueSize) -> _CompiledSchema:
    """Return a compiled schema; raise `ConfinementNeeded` if the arguments are too large for it."""
    if size.values > INLINE_VALUES or size.characters > INLINE_CHARACTERS:
        raise ConfinementNeeded("The arguments are large.")
    compiled = _at_hand.of(schema)
    if (
        compiled.cost.weight * size.values > INLINE_COST
        or compiled.cost.matching * size.characters > INLINE_MATCHING
    ):
        raise ConfinementNeeded("The schema and the arguments together are large.")
    return compiled


def find_violation(schema: Any, arguments: Any) -> InvalidArguments | None:
    """Return the first violation, without a time limit: only for child processes."""
    return _find_first_violation(build_validator(schema), arguments)


def measure_arguments(arguments: Any) -> ValueSize:
    """Return the size of `arguments`; raise `InvalidArguments` beyond the limits."""
    if not isinstance(arguments, dict):
        raise build_invalid_arguments(
            ArgumentViolation("$", "Arguments must be a JSON object.", "Send `{…}`.")
        )
    size = measure(arguments, most=MOST_VALUES, deepest=DEEPEST)
    if size.depth > DEEPEST:
        raise build_invalid_arguments(
            ArgumentViolation(
                "$",
                format_message("The arguments are nested deeper than {deepest}.", deepest=DEEPEST),
                "Flatten them.",
            )
        )
    if size.values > MOST_VALUES:
        raise build_invalid_arguments(
            ArgumentViolation(
                "$",
                format_message(
                    "The arguments hold more than {most_values} values.", most_values=MOST_VALUES
                ),
                "Send fewer.",
            )
        )
    if size.unreadable:
        raise build_invalid_arguments(
            ArgumentViolation(
                "$",
                "The arguments hold text that is not valid Unicode, or a number that isn't finite.",
                "Send plain JSON.",
            )
        )
    return size


def build_invalid_arguments(
    complaint: ArgumentViolation, others: tuple[dict[str, str], ...] = ()
) -> InvalidArguments:
    """Return the problem for a violation; `further_errors` are in REST form."""
    return InvalidArguments(
        complaint.detail,
        field=complaint.path,
        remedy=complaint.remedy,
        extra={"errors": list(others)} if others else None,
    )


def _find_first_violation(validator: Validator, arguments: Any) -> InvalidArguments | None:
    errors = list(islice(validator.iter_errors(arguments), _MOST_ERRORS))
    if not errors:
        return None
    first = build_violation(best_match(errors))
    each = {found.path: found for found in map(build_violation, errors)} if len(errors) > 1 else {}
    others = tuple(
        {"field": found.path, "code": InvalidArguments.code, "detail": found.detail}
        for found in islice(each.values(), MOST_COMPLAINTS)
    )
    return build_invalid_arguments(first, others)


@lru_cache(maxsize=512)
def _compile_schema(text: str) -> _CompiledSchema:
    """Return the compiled schema for a JSON text."""
    schema = json.loads(text)
    return _CompiledSchema(build_validator(schema), read(schema).cost, build_fast_test(schema))


# Schemas of a snapshot's tools and rules are reused as the same objects.
_at_hand = ObjectIdentityCache(lambda schema: _compile_schema(json.dumps(schema)))
