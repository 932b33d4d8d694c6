"""Classify schemas as inline, confined or refused by their size and cost (pure)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

import referencing.exceptions
from jsonschema_specifications import REGISTRY
from referencing import Specification
from referencing.jsonschema import DRAFT202012, specification_with

from bonobot.core.i18n.messages import format_message
from bonobot.core.text.untrusted_text import format_json_path, make_visible
from mcp_servers.schemas import dialects


@dataclass(frozen=True, slots=True)
class ValueSize:
    """Number of values, nodes (objects, arrays, booleans) and characters, and the depth.

    `is_invalid` means that a string is not valid Unicode or a number not finite. Counting stops
    beyond `max_values`, so the numbers are lower bounds then.
    """

    values: int
    nodes: int
    characters: int
    depth: int
    unreadable: bool = False


def measure(value: Any, *, most: int, deepest: int) -> ValueSize:
    """Return the size of a JSON value; stop soon after `max_values` or `max_depth`."""
    values = nodes = characters = depth = 0
    unreadable = False
    level: list[Any] = [value]
    while level and values <= most and depth <= deepest:
        depth += 1
        inner: list[Any] = []
        values += len(level)
        for item in level[: most + 1]:
            if isinstance(item, str):
                characters += len(item)
                unreadable = unreadable or not (item.isascii() or _is_encodable(item))
            elif isinstance(item, dict):
                nodes += 1
                names = "".join(item)
                characters += len(names)
                unreadable = unreadable or not (names.isascii() or _is_encodable(names))
                inner += item.values()
            elif isinstance(item, list | tuple):
                nodes += 1
                inner += item
            elif isinstance(item, float):
                unreadable = unreadable or not isfinite(item)
            elif item is True or item is False:
                nodes += 1
            elif isinstance(item, int):
                characters += item.bit_length() // 3
        level = inner
    return ValueSize(values, nodes, characters, depth, unreadable)


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


Verdict = Literal["inline", "confined", "refused"]

MOST_NODES = 2_000
MOST_VALUES = 50_000
DEEPEST = 64
INLINE_NODES = 200
INLINE_WEIGHT = 2_000
INLINE_CHAIN = 32
_VAST = 10**9

# These depend on the results of other keywords, and are slow in every implementation.
_LOOKING_BACK = ("unevaluatedProperties", "unevaluatedItems")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_UNRESOLVABLE = (
    referencing.exceptions.Unresolvable,
    referencing.exceptions.CannotDetermineSpecification,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class SchemaVerdict:
    """The verdict on a schema and its reason; `inline` has none."""

    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SchemaCost:
    """The maximum cost of one pass: steps per value, steps per character, depth."""

    weight: int = 1
    matching: int = 0
    chain: int = 1


@dataclass(slots=True)
class SchemaAnalysis:
    """The cost of a schema, and what prevents inline checks."""

    cost: SchemaCost = SchemaCost()
    confining: str = ""
    fault: str = ""
    edges: dict[int, list[int]] = field(default_factory=dict)
    costs: dict[int, SchemaCost] = field(default_factory=dict)


def classify_schema(schema: Any) -> SchemaVerdict:
    """Return how arguments are checked against `schema`: inline, confined or (refused) not at all.

    The limits are in docs/limits.md. Takes milliseconds; nothing is fetched or matched.
    """
    if not isinstance(schema, dict):
        return SchemaVerdict("refused", "The schema is not a JSON object.")
    size = measure(schema, most=MOST_VALUES, deepest=DEEPEST)
    if size.depth > DEEPEST:
        return SchemaVerdict(
            "refused",
            format_message("The schema is nested deeper than {deepest}.", deepest=DEEPEST),
        )
    if size.nodes > MOST_NODES or size.values > MOST_VALUES:
        return SchemaVerdict(
            "refused",
            format_message("The schema has more than {most_nodes} nodes.", most_nodes=MOST_NODES),
        )
    if size.unreadable:
        return SchemaVerdict("refused", "The schema holds text that is not valid Unicode.")
    try:
        fault = dialects.find_schema_fault(schema)
    except RecursionError:
        return SchemaVerdict("refused", "The schema is nested too deeply to be read.")
    if fault is not None:
        return SchemaVerdict("refused", _describe_fault(fault))
    reading = read(schema)
    if reading.fault:
        return SchemaVerdict("refused", reading.fault)
    if size.nodes > INLINE_NODES:
        return SchemaVerdict(
            "confined",
            format_message(
                "The schema has more than {inline_nodes} nodes.", inline_nodes=INLINE_NODES
            ),
        )
    if reading.confining:
        return SchemaVerdict("confined", reading.confining)
    return SchemaVerdict("inline")


def read(schema: dict[str, Any]) -> SchemaAnalysis:
    """Analyze every subschema and reference of a schema within the size limits."""
    reading = SchemaAnalysis()
    specification = specification_with(
        dialects.get_dialect(schema).META_SCHEMA.get("$schema", ""), default=DRAFT202012
    )
    root = specification.create_resource(schema)
    try:
        _walk_schema(schema, REGISTRY.resolver_with_root(root), specification, reading)
    except _UNRESOLVABLE:
        reading.fault = reading.fault or "The schema's identifiers can't be resolved."
    if not reading.fault:
        _sum_costs(id(schema), reading)
    return reading


def _walk_schema(
    schema: dict[str, Any],
    resolver: Any,
    specification: Specification[Any],
    reading: SchemaAnalysis,
) -> None:
    waiting: list[tuple[Any, Any]] = [(schema, resolver)]
    while waiting and not reading.fault:
        contents, resolver = waiting.pop()
        if id(contents) in reading.edges or not isinstance(contents, dict):
            continue
        reading.costs[id(contents)] = SchemaCost(
            1 + len(contents) + _choices(contents), _note(contents, reading)
        )
        if contents is not schema and "$schema" in contents:
            # jsonschema switches to that dialect's class, without our keywords.
            reading.confining = "A part of the schema is in a dialect of its own."
        found = [
            *_list_subschemas(contents, resolver, specification),
            *_resolve_references(contents, resolver, reading),
        ]
        reading.edges[id(contents)] = [id(part) for part, _ in found if isinstance(part, dict)]
        waiting += found


def _list_subschemas(
    contents: dict[str, Any], resolver: Any, specification: Specification[Any]
) -> Iterator[tuple[Any, Any]]:
    # Where subschemas are depends on the dialect.
    for part in specification.subresources_of(contents):
        yield part, resolver.in_subresource(specification.create_resource(part))


def _resolve_references(
    contents: dict[str, Any], resolver: Any, reading: SchemaAnalysis
) -> Iterator[tuple[Any, Any]]:
    for keyword in _REFERENCES:
        reference = contents.get(keyword)
        if not isinstance(reference, str):
            continue
        try:
            resolved = resolver.lookup(reference)
        except _UNRESOLVABLE:
            what = "points nowhere" if reference.startswith("#") else "points outside the schema"
            reading.fault = f"`{keyword}` {what}: `{reference[:200]}`."
            return
        if keyword != "$ref":
            reading.confining = f"The schema uses `{keyword}`."
        yield resolved.contents, resolved.resolver


def _note(contents: dict[str, Any], reading: SchemaAnalysis) -> int:
    """Analyze a subschema's own keywords; return the program size of its patterns."""
    for keyword in _LOOKING_BACK:
        if keyword in contents:
            reading.confining = f"The schema uses `{keyword}`."
    by_name = contents.get("patternProperties")
    matching = 0
    for pattern in (contents.get("pattern"), *(by_name if isinstance(by_name, dict) else ())):
        if not isinstance(pattern, str):
            continue
        if (compiled := dialects.compile_linear(pattern)) is not None:
            matching += compiled.programsize
        elif dialects.compile_pattern(pattern) is not None:
            reading.confining = f"The pattern `{pattern[:200]}` can't be matched in linear time."
        else:
            reading.fault = f"The pattern `{pattern[:200]}` is not a regular expression."
    return matching


def _sum_costs(root: int, reading: SchemaAnalysis) -> None:
    """Compute the maximum cost of one pass; shared parts count once per reference."""
    done: dict[int, SchemaCost] = {}
    opened: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting[-1]
        parts = reading.edges[node]
        if node not in opened:
            opened.add(node)
            if any(part in opened and part not in done for part in parts):
                reading.confining = "The schema is recursive."
                return
            waiting.extend(part for part in parts if part not in done)
            continue
        waiting.pop()
        if node not in done:
            done[node] = _merge_costs(reading.costs[node], [done[part] for part in parts])
    reading.cost = done[root]
    if reading.cost.chain > INLINE_CHAIN:
        reading.confining = reading.confining or "The schema's parts follow each other too deeply."
    elif reading.cost.weight > INLINE_WEIGHT:
        reading.confining = reading.confining or "The schema's references multiply its parts."


def _merge_costs(own: SchemaCost, below: list[SchemaCost]) -> SchemaCost:
    return SchemaCost(
        min(own.weight + sum(part.weight for part in below), _VAST),
        min(own.matching + sum(part.matching for part in below), _VAST),
        1 + max((part.chain for part in below), default=0),
    )


def _choices(contents: dict[str, Any]) -> int:
    """Return the cost of comparing with `enum` and `const`, in keyword steps."""
    fixed = [contents[keyword] for keyword in ("enum", "const") if keyword in contents]
    size = measure(fixed, most=MOST_VALUES, deepest=DEEPEST)
    return 2 * size.nodes + size.values // 8


def _describe_fault(fault: Any) -> str:
    place = format_json_path(fault.absolute_path)
    return f"The schema is broken at `{place}`: {make_visible(fault.message, 200)}."
