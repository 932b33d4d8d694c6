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
from bonobot.core.problems import InvalidInput
from bonobot.core.process_cache import ObjectIdentityCache
from mcp_servers.schemas.classify_schema import (
    MAX_DEPTH,
    SchemaCost,
    SchemaVerdict,
    ValueSize,
    analyze_schema,
    measure_value,
)
from mcp_servers.schemas.dialects import (
    Validator,
    build_validator,
    list_additional_names,
    matches_pattern,
)
from mcp_servers.schemas.error_messages import ArgumentViolation, build_violation

ValueTest = Callable[[Any], bool]

# Values of `$schema` for dialects in which the supported keywords mean the same.
SUPPORTED_DIALECTS = frozenset(
    f"http{secure}://json-schema.org/{name}"
    for secure in ("", "s")
    for name in ("draft/2020-12/schema", "draft-07/schema", "draft-07/schema#")
)
# Annotations, which don't affect validity.
_ANNOTATION_KEYWORDS = frozenset(
    {
        *("title", "description", "default", "examples", "$comment"),
        *("format", "deprecated", "readOnly", "writeOnly"),
    }
)
_NUMBERS = (int, float)
MAX_INLINE_CHARACTERS = 16 * 1024
MAX_INLINE_VALUES = 1_000
# Steps per value × values, and per character × characters: at most about 35 ms each.
MAX_INLINE_COST = 10_000
MAX_INLINE_PATTERN_COST = 4_000_000
MAX_ARGUMENT_VALUES = 100_000
MAX_REPORTED_VIOLATIONS = 5
_MAX_ERRORS = 50


class _UnsupportedKeyword(Exception):  # not an error: `jsonschema` handles it
    """The schema has a keyword that the fast path doesn't support."""


def build_fast_test(schema: Any) -> ValueTest | None:
    """Return a fast validity test for `schema`, or None if it needs `jsonschema`."""
    if not isinstance(schema, dict):
        return None
    keywords = dict(schema)
    dialect = keywords.pop("$schema", None)
    if dialect is not None and dialect not in SUPPORTED_DIALECTS:
        return None
    try:
        return _build_test(keywords)
    except (_UnsupportedKeyword, RecursionError):
        return None


def _build_test(schema: Any) -> ValueTest:
    if isinstance(schema, bool):
        return _accept_anything if schema else _reject_everything
    if not isinstance(schema, dict):
        raise _UnsupportedKeyword
    tests = tuple(_build_keyword_tests(schema))
    if len(tests) < 2:
        return tests[0] if tests else _accept_anything

    def is_valid(value: Any) -> bool:
        for test in tests:  # noqa: SIM110  # `all` of a generator costs twice as much
            if not test(value):
                return False
        return True

    return is_valid


def _build_keyword_tests(schema: Mapping[str, Any]) -> Iterator[ValueTest]:
    for keyword, expected in schema.items():
        if keyword in _ANNOTATION_KEYWORDS or (
            keyword == "additionalProperties" and expected is True
        ):
            continue
        build_test = _KEYWORDS.get(keyword)
        if build_test is None:
            raise _UnsupportedKeyword
        yield build_test(expected, schema)


def _accept_anything(_value: Any) -> bool:
    return True


def _reject_everything(_value: Any) -> bool:
    return False


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


_TYPES: dict[str, ValueTest] = {
    "string": lambda value: isinstance(value, str),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _is_number,
    "integer": _is_integer,
}


def _build_type_test(expected: Any, _schema: Any) -> ValueTest:
    names = [expected] if isinstance(expected, str) else expected
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        raise _UnsupportedKeyword
    if not names or not all(name in _TYPES for name in names):
        raise _UnsupportedKeyword
    if len(names) == 1:
        return _TYPES[names[0]]
    tests = tuple(_TYPES[name] for name in names)
    return lambda value: any(test(value) for test in tests)


def _build_properties_test(expected: Any, _schema: Any) -> ValueTest:
    if not isinstance(expected, dict):
        raise _UnsupportedKeyword
    tests = {name: _build_test(subschema) for name, subschema in expected.items()}
    restricting_tests = {name: test for name, test in tests.items() if test is not _accept_anything}

    def is_valid(value: Any) -> bool:
        if isinstance(value, dict):
            for name, test in restricting_tests.items():
                if name in value and not test(value[name]):
                    return False
        return True

    return is_valid


def _build_required_test(expected: Any, _schema: Any) -> ValueTest:
    names = _parse_names(expected)

    def is_valid(value: Any) -> bool:
        if isinstance(value, dict):
            for name in names:
                if name not in value:
                    return False
        return True

    return is_valid


def _build_additional_test(expected: Any, schema: Mapping[str, Any]) -> ValueTest:
    properties = schema.get("properties", {})
    if "patternProperties" in schema or not isinstance(properties, dict):
        raise _UnsupportedKeyword
    declared = {"properties": properties}
    test = _build_test(expected)

    def is_valid(value: Any) -> bool:
        if not isinstance(value, dict) or value.keys() <= properties.keys():
            return True
        return all(test(value[name]) for name in list_additional_names(value, declared))

    return is_valid


def _build_items_test(expected: Any, schema: Mapping[str, Any]) -> ValueTest:
    if "prefixItems" in schema:
        raise _UnsupportedKeyword
    test = _build_test(expected)
    return lambda value: not isinstance(value, list) or all(map(test, value))


def _build_enum_test(expected: Any, _schema: Any) -> ValueTest:
    if not isinstance(expected, list):
        raise _UnsupportedKeyword
    # In JSON, 1 equals 1.0 but not true: Python sets differ only for booleans.
    if not all(item is None or isinstance(item, str) or _is_number(item) for item in expected):
        raise _UnsupportedKeyword
    choices = frozenset(expected)

    def is_valid(value: Any) -> bool:
        is_scalar = value is None or isinstance(value, str) or _is_number(value)
        return is_scalar and value in choices

    return is_valid


def _build_const_test(expected: Any, schema: Any) -> ValueTest:
    return _build_enum_test([expected], schema)


def _build_limit_test_factory(
    is_applicable: ValueTest, is_within: Callable[[Any, Any], bool]
) -> Callable[[Any, Any], ValueTest]:
    def build_limit_test(limit: Any, _schema: Any) -> ValueTest:
        if not _is_number(limit):
            raise _UnsupportedKeyword
        return lambda value: not is_applicable(value) or is_within(value, limit)

    return build_limit_test


def _build_pattern_test(expected: Any, _schema: Any) -> ValueTest:
    if not isinstance(expected, str):
        raise _UnsupportedKeyword
    return lambda value: not isinstance(value, str) or matches_pattern(expected, value)


def _build_any_test(expected: Any, _schema: Any) -> ValueTest:
    tests = _build_subschema_tests(expected)
    return lambda value: any(test(value) for test in tests)


def _build_all_test(expected: Any, _schema: Any) -> ValueTest:
    tests = _build_subschema_tests(expected)
    return lambda value: all(test(value) for test in tests)


def _build_subschema_tests(expected: Any) -> tuple[ValueTest, ...]:
    if not isinstance(expected, list) or not expected:
        raise _UnsupportedKeyword
    return tuple(map(_build_test, expected))


def _parse_names(expected: Any) -> tuple[str, ...]:
    if not isinstance(expected, list) or not all(isinstance(name, str) for name in expected):
        raise _UnsupportedKeyword
    return tuple(expected)


_TEXT, _OBJECT, _ARRAY = _TYPES["string"], _TYPES["object"], _TYPES["array"]
_KEYWORDS: dict[str, Callable[[Any, Any], ValueTest]] = {
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
    "minimum": _build_limit_test_factory(_is_number, lambda value, least: value >= least),
    "maximum": _build_limit_test_factory(_is_number, lambda value, most: value <= most),
    "exclusiveMinimum": _build_limit_test_factory(_is_number, lambda value, least: value > least),
    "exclusiveMaximum": _build_limit_test_factory(_is_number, lambda value, most: value < most),
    "minLength": _build_limit_test_factory(_TEXT, lambda value, least: len(value) >= least),
    "maxLength": _build_limit_test_factory(_TEXT, lambda value, most: len(value) <= most),
    "minItems": _build_limit_test_factory(_ARRAY, lambda value, least: len(value) >= least),
    "maxItems": _build_limit_test_factory(_ARRAY, lambda value, most: len(value) <= most),
    "minProperties": _build_limit_test_factory(_OBJECT, lambda value, least: len(value) >= least),
    "maxProperties": _build_limit_test_factory(_OBJECT, lambda value, most: len(value) <= most),
}


class InvalidArguments(InvalidInput):
    """The arguments don't match the tool's input schema; `field` is the JSON path."""

    code = "invalid_arguments"
    title = "The arguments don't match the tool's schema"


class SubprocessNeeded(Exception):
    """Checking inline could take too long; `subprocess_pool` does it in a child process."""


@dataclass(frozen=True, slots=True)
class _CompiledSchema:
    validator: Validator
    cost: SchemaCost
    is_valid: ValueTest | None


def check_arguments(schema: Any, arguments: Any, verdict: SchemaVerdict) -> None:
    """Check `arguments` inline, within about 70 ms.

    Raises `InvalidArguments`, `InvalidInput` (`schema_rejected`), or `SubprocessNeeded` if the
    schema, the arguments or both together exceed the inline limits.
    """
    check_value(schema, arguments, verdict, size=measure_arguments(arguments))


def check_value(
    schema: Any, value: Any, verdict: SchemaVerdict, *, size: ValueSize | None = None
) -> None:
    """Check any JSON value inline, as `check_arguments` does; `size` is the value's if known."""
    if size is None:
        size = measure_value(value, max_values=MAX_ARGUMENT_VALUES)
    if verdict.verdict == "refused":
        raise InvalidInput(
            f"The tool's input schema can't be used. {verdict.reason}".strip(),
            code="schema_rejected",
            remedy="Ask the server's administrator to fix the schema. The tool's page shows where "
            "the problem is.",
        )
    if verdict.verdict != "inline":
        raise SubprocessNeeded(verdict.reason)
    compiled = _compile_inline(schema, size)
    if compiled.is_valid is not None and compiled.is_valid(value):
        return
    if (violation := _find_first_violation(compiled.validator, value)) is not None:
        raise violation


def is_valid_for_schema(schema: Any, arguments: Any, size: ValueSize | None = None) -> bool:
    """Tell whether `arguments` match a trusted schema, within the inline limits.

    `size` is that of the arguments if they were measured before. Raises `InvalidArguments` if
    they are not a JSON object, and `SubprocessNeeded`.
    """
    compiled = _compile_inline(schema, size or measure_arguments(arguments))
    if compiled.is_valid is not None:
        return compiled.is_valid(arguments)
    return bool(compiled.validator.is_valid(arguments))


def _compile_inline(schema: Any, size: ValueSize) -> _CompiledSchema:
    """Return a compiled schema; raise `SubprocessNeeded` if the arguments are too large for it."""
    if size.values > MAX_INLINE_VALUES or size.characters > MAX_INLINE_CHARACTERS:
        raise SubprocessNeeded("The arguments are large.")
    compiled = _compiled_schemas.get(schema)
    if (
        compiled.cost.weight * size.values > MAX_INLINE_COST
        or compiled.cost.pattern_cost * size.characters > MAX_INLINE_PATTERN_COST
    ):
        raise SubprocessNeeded("The schema and the arguments together are large.")
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
    size = measure_value(arguments, max_values=MAX_ARGUMENT_VALUES)
    if size.depth > MAX_DEPTH:
        raise build_invalid_arguments(
            ArgumentViolation(
                "$",
                format_message(
                    "The arguments are nested more than {deepest} levels deep.", deepest=MAX_DEPTH
                ),
                "Flatten the arguments.",
            )
        )
    if size.values > MAX_ARGUMENT_VALUES:
        raise build_invalid_arguments(
            ArgumentViolation(
                "$",
                format_message(
                    "The arguments contain more than {most_values} values.",
                    most_values=MAX_ARGUMENT_VALUES,
                ),
                "Send fewer values.",
            )
        )
    if size.is_invalid:
        raise build_invalid_arguments(
            ArgumentViolation(
                "$",
                "The arguments contain invalid Unicode text or a non-finite number.",
                "Send plain JSON.",
            )
        )
    return size


def build_invalid_arguments(
    violation: ArgumentViolation, further_errors: tuple[dict[str, str], ...] = ()
) -> InvalidArguments:
    """Return the problem for a violation; `further_errors` are in REST form."""
    return InvalidArguments(
        violation.detail,
        field=violation.path,
        remedy=violation.remedy,
        extra={"errors": list(further_errors)} if further_errors else None,
    )


def _find_first_violation(validator: Validator, arguments: Any) -> InvalidArguments | None:
    errors = list(islice(validator.iter_errors(arguments), _MAX_ERRORS))
    if not errors:
        return None
    first = build_violation(best_match(errors))
    violations_by_path = (
        {violation.path: violation for violation in map(build_violation, errors)}
        if len(errors) > 1
        else {}
    )
    further_errors = tuple(
        {"field": violation.path, "code": InvalidArguments.code, "detail": violation.detail}
        for violation in islice(violations_by_path.values(), MAX_REPORTED_VIOLATIONS)
    )
    return build_invalid_arguments(first, further_errors)


@lru_cache(maxsize=512)
def _compile_schema(text: str) -> _CompiledSchema:
    schema = json.loads(text)
    return _CompiledSchema(
        build_validator(schema), analyze_schema(schema).cost, build_fast_test(schema)
    )


# Schemas of a snapshot's tools and rules are reused as the same objects.
_compiled_schemas = ObjectIdentityCache(lambda schema: _compile_schema(json.dumps(schema)))
