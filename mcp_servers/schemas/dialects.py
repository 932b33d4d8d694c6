"""The dialects of JSON Schema, with a closed registry and patterns in linear time.

jsonschema fetches a `$ref` from the network by default, and matches with `re`, where a hostile
pattern never ends (reference/security.md, findings 2 and 7). Here the registry knows the standard
meta-schemas and nothing else, and patterns go to RE2, which also reads `\\d`, `\\w` and `$` as
ECMAScript does. Patterns that RE2 refuses (look-around, back references) are left to `re`, which is
bearable only in a process that can be killed.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import jsonschema
import re2
from jsonschema.exceptions import ValidationError
from jsonschema_specifications import REGISTRY

Validator = Any
Engine = Any

_QUIET = re2.Options()
_QUIET.log_errors = False
_LONGEST_BACKTRACKING = 4096


@lru_cache(maxsize=2048)
def linear(pattern: str) -> Engine | None:
    """Return the pattern compiled by RE2, or None where RE2 can't."""
    try:
        return re2.compile(pattern, _QUIET)
    except (re2.error, UnicodeEncodeError):
        return None


@lru_cache(maxsize=512)
def engine(pattern: str) -> Engine | None:
    """Return the pattern compiled by RE2 or else by `re`, or None where neither can."""
    if (compiled := linear(pattern)) is not None or len(pattern) > _LONGEST_BACKTRACKING:
        return compiled
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None


def dialect_of(schema: Any) -> type[Validator]:
    """Return the validator class of `$schema`; 2020-12 where it is absent or unknown."""
    named = isinstance(schema, dict) and isinstance(schema.get("$schema"), str)
    default = jsonschema.Draft202012Validator
    found = jsonschema.validators.validator_for(schema, default=default) if named else default
    return _guarded(found)


def validator_of(schema: Any) -> Validator:
    """Return a validator of `schema` that opens nothing and matches patterns in linear time."""
    return dialect_of(schema)(schema, registry=REGISTRY)


def first_fault(schema: Any) -> ValidationError | None:
    """Return what makes `schema` no schema of its dialect, if anything."""
    dialect = dialect_of(schema)
    meta: Any = dialect(dialect.META_SCHEMA, registry=REGISTRY)
    return next(meta.iter_errors(schema), None)


@lru_cache(maxsize=16)
def _guarded(dialect: type[Validator]) -> type[Validator]:
    replaced = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    known = {name: check for name, check in replaced.items() if name in dialect.VALIDATORS}
    extended: type[Validator] = jsonschema.validators.extend(dialect, known)
    return extended


def _pattern(
    validator: Validator, pattern: str, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not finds(pattern, instance):
        yield ValidationError(f"does not match {pattern!r}")


def _pattern_properties(
    validator: Validator, patterns: dict[str, Any], instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in patterns.items():
        for name, value in instance.items():
            if finds(pattern, name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(
    validator: Validator, additional: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    extras = additional_names(instance, schema)
    if additional is False and extras:
        yield ValidationError("has properties that the schema doesn't know")
    elif validator.is_type(additional, "object"):
        for name in extras:
            yield from validator.descend(instance[name], additional, path=name)


def _unique_items(
    validator: Validator, unique: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    # By one text for each value, in linear time; jsonschema compares each with each.
    if unique and validator.is_type(instance, "array"):
        seen = {_text_of(item) for item in instance}
        if len(seen) < len(instance):
            yield ValidationError("has the same item twice")


def additional_names(instance: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """Return the properties that neither `properties` nor `patternProperties` speak of."""
    known = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    return [
        name
        for name in instance
        if name not in known and not any(finds(pattern, name) for pattern in patterns)
    ]


def finds(pattern: str, text: str) -> bool:
    """Tell whether a pattern is found in a text; one that no engine can read never is."""
    compiled = engine(pattern)
    return compiled is not None and compiled.search(text) is not None


def _text_of(value: Any) -> str:
    """Return a text that is the same for values that JSON Schema calls equal (1 and 1.0 are)."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{name!r}:{_text_of(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text_of, value)) + "]"
    return repr(int(value)) if value == int(value) else repr(value)
