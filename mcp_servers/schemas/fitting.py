"""Tell quickly whether a value fits a schema, for the keywords that nearly every tool uses.

`jsonschema` stays the judge: this says the same as it (property-tested) some ten times faster, and
nothing at all of schemas with any other keyword. What is wrong with a value is always its to say.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mcp_servers.schemas.dialects import additional_names, finds

Fits = Callable[[Any], bool]

# Dialects in which all that is read here means the same, as `$schema` names them.
DIALECTS = frozenset(
    f"http{secure}://json-schema.org/{name}"
    for secure in ("", "s")
    for name in ("draft/2020-12/schema", "draft-07/schema", "draft-07/schema#")
)
# These tell people something, and change no verdict.
_REMARKS = frozenset(
    {
        *("title", "description", "default", "examples", "$comment"),
        *("format", "deprecated", "readOnly", "writeOnly"),
    }
)


class _Unknown(Exception):  # no error: `jsonschema` reads it
    """The schema says something that is not read here."""


def fitting(schema: Any) -> Fits | None:
    """Return what tells whether a JSON value fits `schema`, or None where `jsonschema` must."""
    if not isinstance(schema, dict):
        return None
    rest = dict(schema)
    dialect = rest.pop("$schema", None)
    if dialect is not None and dialect not in DIALECTS:
        return None
    try:
        return _fits(rest)
    except (_Unknown, RecursionError):
        return None


def _fits(schema: Any) -> Fits:
    if isinstance(schema, bool):
        return _anything if schema else _nothing
    if not isinstance(schema, dict):
        raise _Unknown
    every = tuple(_tests(schema))
    if len(every) < 2:
        return every[0] if every else _anything

    def fits(value: Any) -> bool:
        for test in every:  # noqa: SIM110  # `all` of a generator costs twice as much
            if not test(value):
                return False
        return True

    return fits


def _tests(schema: Mapping[str, Any]) -> Iterator[Fits]:
    for keyword, said in schema.items():
        if keyword in _REMARKS or (keyword == "additionalProperties" and said is True):
            continue
        make = _KEYWORDS.get(keyword)
        if make is None:
            raise _Unknown
        yield make(said, schema)


def _anything(_value: Any) -> bool:
    return True


def _nothing(_value: Any) -> bool:
    return False


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _integer(value: Any) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


_TYPES: dict[str, Fits] = {
    "string": lambda value: isinstance(value, str),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _number,
    "integer": _integer,
}


def _type(said: Any, _schema: Any) -> Fits:
    names = [said] if isinstance(said, str) else said
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise _Unknown
    if not names or not all(name in _TYPES for name in names):
        raise _Unknown
    if len(names) == 1:
        return _TYPES[names[0]]
    tests = tuple(_TYPES[name] for name in names)
    return lambda value: any(test(value) for test in tests)


def _properties(said: Any, _schema: Any) -> Fits:
    if not isinstance(said, dict):
        raise _Unknown
    tests = {name: _fits(inner) for name, inner in said.items()}
    told = {name: test for name, test in tests.items() if test is not _anything}

    def fits(value: Any) -> bool:
        if isinstance(value, dict):
            for name, test in told.items():
                if name in value and not test(value[name]):
                    return False
        return True

    return fits


def _required(said: Any, _schema: Any) -> Fits:
    names = _texts(said)

    def fits(value: Any) -> bool:
        if isinstance(value, dict):
            for name in names:
                if name not in value:
                    return False
        return True

    return fits


def _additional(said: Any, schema: Mapping[str, Any]) -> Fits:
    properties = schema.get("properties", {})
    if "patternProperties" in schema or not isinstance(properties, dict):
        raise _Unknown
    known = {"properties": properties}
    test = _fits(said)

    def fits(value: Any) -> bool:
        if not isinstance(value, dict) or value.keys() <= properties.keys():
            return True
        return all(test(value[name]) for name in additional_names(value, known))

    return fits


def _items(said: Any, schema: Mapping[str, Any]) -> Fits:
    if "prefixItems" in schema:
        raise _Unknown
    test = _fits(said)
    return lambda value: not isinstance(value, list) or all(map(test, value))


def _enum(said: Any, _schema: Any) -> Fits:
    if not isinstance(said, list):
        raise _Unknown
    # JSON's 1 and 1.0 are equal, 1 and true aren't: Python's sets agree about all but booleans.
    if not all(one is None or isinstance(one, str) or _number(one) for one in said):
        raise _Unknown
    members = frozenset(said)

    def fits(value: Any) -> bool:
        plain = value is None or isinstance(value, str) or _number(value)
        return plain and value in members

    return fits


def _const(said: Any, schema: Any) -> Fits:
    return _enum([said], schema)


def _bound(kind: Fits, holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Fits]:
    def make(said: Any, _schema: Any) -> Fits:
        if not _number(said):
            raise _Unknown
        return lambda value: not kind(value) or holds(value, said)

    return make


def _pattern(said: Any, _schema: Any) -> Fits:
    if not isinstance(said, str):
        raise _Unknown
    return lambda value: not isinstance(value, str) or finds(said, value)


def _any_of(said: Any, _schema: Any) -> Fits:
    tests = _each(said)
    return lambda value: any(test(value) for test in tests)


def _all_of(said: Any, _schema: Any) -> Fits:
    tests = _each(said)
    return lambda value: all(test(value) for test in tests)


def _each(said: Any) -> tuple[Fits, ...]:
    if not isinstance(said, list) or not said:
        raise _Unknown
    return tuple(map(_fits, said))


def _texts(said: Any) -> tuple[str, ...]:
    if not isinstance(said, list) or not all(isinstance(one, str) for one in said):
        raise _Unknown
    return tuple(said)


_TEXT, _OBJECT, _ARRAY = _TYPES["string"], _TYPES["object"], _TYPES["array"]
_KEYWORDS: dict[str, Callable[[Any, Any], Fits]] = {
    "type": _type,
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "items": _items,
    "enum": _enum,
    "const": _const,
    "pattern": _pattern,
    "anyOf": _any_of,
    "allOf": _all_of,
    "minimum": _bound(_number, lambda value, least: value >= least),
    "maximum": _bound(_number, lambda value, most: value <= most),
    "exclusiveMinimum": _bound(_number, lambda value, least: value > least),
    "exclusiveMaximum": _bound(_number, lambda value, most: value < most),
    "minLength": _bound(_TEXT, lambda value, least: len(value) >= least),
    "maxLength": _bound(_TEXT, lambda value, most: len(value) <= most),
    "minItems": _bound(_ARRAY, lambda value, least: len(value) >= least),
    "maxItems": _bound(_ARRAY, lambda value, most: len(value) <= most),
    "minProperties": _bound(_OBJECT, lambda value, least: len(value) >= least),
    "maxProperties": _bound(_OBJECT, lambda value, most: len(value) <= most),
}
