"""JSON Schema dialects with a closed registry and linear-time patterns.

By default, jsonschema fetches a `$ref` from the network, and matches with `re`, where hostile
patterns take exponential time. Here the registry has only the standard meta-schemas, and patterns
are matched by RE2, which also interprets `\\d`, `\\w` and `$` like ECMAScript. Patterns that RE2
doesn't support (look-around, back references) use `re`, only in a process that can be killed.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

import jsonschema
import re2
from jsonschema.exceptions import ValidationError
from jsonschema_specifications import REGISTRY

Validator = Any
Engine = Any

_RE2_OPTIONS = re2.Options()
_RE2_OPTIONS.log_errors = False
_MAX_BACKTRACKING_PATTERN = 4096


@lru_cache(maxsize=2048)
def compile_linear(pattern: str) -> Engine | None:
    """Return the pattern compiled by RE2, or None if RE2 doesn't support it."""
    try:
        return re2.compile(pattern, _RE2_OPTIONS)
    except (re2.error, UnicodeEncodeError):
        return None


@lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> Engine | None:
    """Return the pattern compiled by RE2, else by `re`, else None."""
    if (compiled := compile_linear(pattern)) is not None or len(
        pattern
    ) > _MAX_BACKTRACKING_PATTERN:
        return compiled
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None


def get_dialect(schema: Any) -> type[Validator]:
    """Return the validator class for `$schema`; 2020-12 if it is missing or unknown."""
    has_dialect = isinstance(schema, dict) and isinstance(schema.get("$schema"), str)
    default = jsonschema.Draft202012Validator
    validator_class = (
        jsonschema.validators.validator_for(schema, default=default) if has_dialect else default
    )
    return _extend_dialect(validator_class)


def build_validator(schema: Any) -> Validator:
    """Return a validator that fetches nothing and prefers linear-time patterns."""
    return get_dialect(schema)(schema, registry=REGISTRY)


def find_schema_fault(schema: Any) -> ValidationError | None:
    """Return the first error of `schema` against its meta-schema, or None."""
    dialect = get_dialect(schema)
    meta_validator: Any = dialect(dialect.META_SCHEMA, registry=REGISTRY)
    return next(meta_validator.iter_errors(schema), None)


@lru_cache(maxsize=16)
def _extend_dialect(dialect: type[Validator]) -> type[Validator]:
    replacements = {
        "pattern": _validate_pattern,
        "patternProperties": _validate_pattern_properties,
        "additionalProperties": _validate_additional_properties,
        "uniqueItems": _validate_unique_items,
        "multipleOf": _validate_multiple_of,
    }
    applicable = {name: check for name, check in replacements.items() if name in dialect.VALIDATORS}
    extended: type[Validator] = jsonschema.validators.extend(dialect, applicable)
    return extended


def _validate_pattern(
    validator: Validator, pattern: str, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not matches_pattern(pattern, instance):
        yield ValidationError(f"does not match {pattern!r}")


def _validate_pattern_properties(
    validator: Validator, patterns: dict[str, Any], instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in patterns.items():
        for name, value in instance.items():
            if matches_pattern(pattern, name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _validate_additional_properties(
    validator: Validator, additional: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    additional_names = list_additional_names(instance, schema)
    if additional is False and additional_names:
        yield ValidationError("has properties that the schema doesn't know")
    elif validator.is_type(additional, "object"):
        for name in additional_names:
            yield from validator.descend(instance[name], additional, path=name)


def _validate_unique_items(
    validator: Validator, unique: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    # Linear time, by canonical strings; jsonschema compares every pair.
    if unique and validator.is_type(instance, "array"):
        seen_values = {_canonicalize_value(item) for item in instance}
        if len(seen_values) < len(instance):
            yield ValidationError("has the same item twice")


def _validate_multiple_of(
    validator: Validator, factor: float, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    # Exact: with floats, 0.3 isn't a multiple of 0.1, and an integer can be too large.
    if validator.is_type(instance, "number") and _parse_exact(instance) % _parse_exact(factor):
        yield ValidationError(f"is not a multiple of {factor}")


def _parse_exact(number: float) -> Fraction:
    """Return the decimal number that was written in JSON, not the nearest binary one."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def list_additional_names(instance: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """Return the properties that neither `properties` nor `patternProperties` cover."""
    properties = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    return [
        name
        for name in instance
        if name not in properties
        and not any(matches_pattern(pattern, name) for pattern in patterns)
    ]


def matches_pattern(pattern: str, text: str) -> bool:
    """Tell whether a pattern matches a text; unsupported patterns never match."""
    compiled = compile_pattern(pattern)
    return compiled is not None and compiled.search(text) is not None


def _canonicalize_value(value: Any) -> str:
    """Return the same string for values that are equal in JSON Schema, such as 1 and 1.0."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return repr(value)
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(f"{name!r}:{_canonicalize_value(value[name])}" for name in sorted(value))
            + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_canonicalize_value, value)) + "]"
    return repr(int(value)) if value == int(value) else repr(value)
