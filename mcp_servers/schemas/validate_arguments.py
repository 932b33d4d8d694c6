"""Check arguments against a schema (pure).

`jsonschema-rs` accepts; it agrees with `jsonschema` (property-tested) and is about a hundred times
faster. Schemas that it doesn't support, and all error messages, are left to `jsonschema`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema_rs
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
from mcp_servers.schemas.dialects import Validator, build_validator
from mcp_servers.schemas.error_messages import ArgumentViolation, build_violation

ValueTest = Callable[[Any], bool]

MAX_INLINE_CHARACTERS = 16 * 1024
MAX_INLINE_VALUES = 1_000
# Steps per value × values, and per character × characters: at most about 35 ms each.
MAX_INLINE_COST = 10_000
MAX_INLINE_PATTERN_COST = 4_000_000
MAX_ARGUMENT_VALUES = 100_000
MAX_REPORTED_VIOLATIONS = 5
_MAX_ERRORS = 50

# `$schema` of the dialects that jsonschema-rs has; 2020-12 if it is missing, as in `dialects`.
_FAST_DIALECTS: dict[str | None, type[jsonschema_rs.Validator]] = {
    None: jsonschema_rs.Draft202012Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "http://json-schema.org/draft-07/schema#": jsonschema_rs.Draft7Validator,
}
# In JSON: keywords that jsonschema-rs asserts and `jsonschema` doesn't, and parts of patterns that
# RE2 reads differently.
_DIFFERENT_TEXTS = (
    *('"contentEncoding"', '"contentMediaType"', '"dependencies"'),
    *("[:", r"\\s", r"\\S"),
)
_LINEAR_PATTERNS = jsonschema_rs.RegexOptions(size_limit=1 << 16, dfa_size_limit=1 << 17)


def build_fast_test(schema: Any) -> ValueTest | None:
    """Return the validity test of jsonschema-rs, or None if it may not agree with `jsonschema`."""
    name = schema.get("$schema") if isinstance(schema, dict) else ""
    dialect = _FAST_DIALECTS.get(name) if name is None or isinstance(name, str) else None
    if dialect is None:
        return None
    schema_text = json.dumps(schema)
    if any(text in schema_text for text in _DIFFERENT_TEXTS):
        return None
    try:
        validator = dialect(
            schema, pattern_options=_LINEAR_PATTERNS, offline=True, validate_formats=False
        )
    except (jsonschema_rs.ReferencingError, ValueError):  # such as a pattern with look-around
        return None
    return validator.is_valid


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
