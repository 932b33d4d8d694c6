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
from bonobot.core.records import record
from bonobot.core.text.untrusted_text import format_json_path, make_visible
from mcp_servers.schemas import dialects

Verdict = Literal["inline", "confined", "refused"]
MAX_NODES = 2_000
MAX_VALUES = 50_000
MAX_DEPTH = 64
MAX_INLINE_NODES = 200
MAX_INLINE_WEIGHT = 2_000
MAX_INLINE_CHAIN = 32
_MAX_COST = 10**9
# These depend on the results of other keywords, and are slow in every implementation.
_UNEVALUATED_KEYWORDS = ("unevaluatedProperties", "unevaluatedItems")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_UNRESOLVABLE = (
    referencing.exceptions.Unresolvable,
    referencing.exceptions.CannotDetermineSpecification,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


@record()
class ValueSize:
    """Number of values, nodes (objects, arrays, booleans) and characters, and the depth.

    `is_invalid` means that a string is not valid Unicode or a number not finite. Counting stops
    beyond `max_values`, so the numbers are lower bounds then.
    """

    values: int
    nodes: int
    characters: int
    depth: int
    is_invalid: bool = False


# Keys, in the order in which a subclass is looked for: every bool is also an int.
_JSON_TYPES: dict[type[Any], None] = dict.fromkeys(
    (str, dict, list, tuple, float, bool, int, type(None))
)


def measure_value(value: Any, *, max_values: int) -> ValueSize:
    """Return the size of a JSON value; stop soon after `max_values` or `MAX_DEPTH`."""
    values = nodes = characters = depth = 0
    is_invalid = False
    level: list[Any] = [value]
    while level and values <= max_values and depth <= MAX_DEPTH:
        depth += 1
        children: list[Any] = []
        values += len(level)
        for item in level[: max_values + 1]:
            kind = type(item)
            if kind not in _JSON_TYPES:
                kind = next((base for base in _JSON_TYPES if isinstance(item, base)), kind)
            if kind is str:
                characters += len(item)
                is_invalid = is_invalid or not (item.isascii() or _is_encodable(item))
            elif kind is dict:
                nodes += 1
                names = "".join(item)
                characters += len(names)
                is_invalid = is_invalid or not (names.isascii() or _is_encodable(names))
                children += item.values()
            elif kind is list or kind is tuple:
                nodes += 1
                children += item
            elif kind is float:
                is_invalid = is_invalid or not isfinite(item)
            elif kind is bool:
                nodes += 1
            elif kind is int:
                characters += item.bit_length() // 3
        level = children
    return ValueSize(values, nodes=nodes, characters=characters, depth=depth, is_invalid=is_invalid)


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class SchemaVerdict:
    """The verdict on a schema and its reason; `inline` has none."""

    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SchemaCost:
    """The maximum cost of one pass: steps per value, steps per character, depth."""

    weight: int = 1
    pattern_cost: int = 0
    chain: int = 1


@dataclass(slots=True)
class SchemaAnalysis:
    """The cost of a schema, and what prevents inline checks."""

    cost: SchemaCost = SchemaCost()
    subprocess_reason: str = ""
    fault: str = ""
    edges: dict[int, list[int]] = field(default_factory=dict)
    costs: dict[int, SchemaCost] = field(default_factory=dict)


def read_stored_verdict(verdict: str, fault: str) -> SchemaVerdict:
    """Return a definition's stored verdict; without one, the schema is checked in a subprocess."""
    verdicts: dict[str, SchemaVerdict] = {
        "inline": SchemaVerdict("inline", ""),
        "refused": SchemaVerdict("refused", fault),
    }
    return verdicts.get(verdict) or SchemaVerdict("confined", "")


def classify_schema(schema: Any) -> SchemaVerdict:
    """Return how arguments are checked against `schema`: inline, confined or (refused) not at all.

    The limits are in docs/limits.md. Takes milliseconds; nothing is fetched or matched.
    """
    if not isinstance(schema, dict):
        return SchemaVerdict("refused", "The schema isn't a JSON object.")
    size = measure_value(schema, max_values=MAX_VALUES)
    if size.depth > MAX_DEPTH:
        return SchemaVerdict(
            "refused",
            format_message(
                "The schema is nested more than {deepest} levels deep.", deepest=MAX_DEPTH
            ),
        )
    if size.nodes > MAX_NODES or size.values > MAX_VALUES:
        return SchemaVerdict(
            "refused",
            format_message("The schema has more than {limit} nodes.", limit=MAX_NODES),
        )
    if size.is_invalid:
        return SchemaVerdict("refused", "The schema contains invalid Unicode text.")
    try:
        fault = dialects.find_schema_fault(schema)
    except RecursionError:
        return SchemaVerdict("refused", "The schema is nested too deeply to be read.")
    if fault is not None:
        return SchemaVerdict("refused", _describe_fault(fault))
    analysis = analyze_schema(schema)
    if analysis.fault:
        return SchemaVerdict("refused", analysis.fault)
    if size.nodes > MAX_INLINE_NODES:
        return SchemaVerdict(
            "confined",
            format_message("The schema has more than {limit} nodes.", limit=MAX_INLINE_NODES),
        )
    if analysis.subprocess_reason:
        return SchemaVerdict("confined", analysis.subprocess_reason)
    return SchemaVerdict("inline")


def analyze_schema(schema: dict[str, Any]) -> SchemaAnalysis:
    """Analyze every subschema and reference of a schema within the size limits."""
    analysis = SchemaAnalysis()
    specification = specification_with(
        dialects.get_dialect(schema).META_SCHEMA.get("$schema", ""), default=DRAFT202012
    )
    root = specification.create_resource(schema)
    try:
        _walk_schema(schema, REGISTRY.resolver_with_root(root), specification, analysis)
    except _UNRESOLVABLE:
        analysis.fault = analysis.fault or "The schema's identifiers can't be resolved."
    if not analysis.fault:
        _sum_costs(id(schema), analysis)
    return analysis


def _walk_schema(
    schema: dict[str, Any],
    resolver: Any,
    specification: Specification[Any],
    analysis: SchemaAnalysis,
) -> None:
    pending: list[tuple[Any, Any]] = [(schema, resolver)]
    while pending and not analysis.fault:
        contents, resolver = pending.pop()
        if id(contents) in analysis.edges or not isinstance(contents, dict):
            continue
        analysis.costs[id(contents)] = SchemaCost(
            1 + len(contents) + _compute_choices_cost(contents),
            _inspect_keywords(contents, analysis),
        )
        if contents is not schema and "$schema" in contents:
            # jsonschema switches to that dialect's class, without our keywords.
            analysis.subprocess_reason = "A part of the schema is in a dialect of its own."
        parts = [
            *_list_subschemas(contents, resolver, specification),
            *_resolve_references(contents, resolver, analysis),
        ]
        analysis.edges[id(contents)] = [id(part) for part, _ in parts if isinstance(part, dict)]
        pending += parts


def _list_subschemas(
    contents: dict[str, Any], resolver: Any, specification: Specification[Any]
) -> Iterator[tuple[Any, Any]]:
    # Where subschemas are depends on the dialect.
    for part in specification.subresources_of(contents):
        yield part, resolver.in_subresource(specification.create_resource(part))


def _resolve_references(
    contents: dict[str, Any], resolver: Any, analysis: SchemaAnalysis
) -> Iterator[tuple[Any, Any]]:
    for keyword in _REFERENCES:
        reference = contents.get(keyword)
        if not isinstance(reference, str):
            continue
        try:
            resolved = resolver.lookup(reference)
        except _UNRESOLVABLE:
            problem = "points nowhere" if reference.startswith("#") else "points outside the schema"
            analysis.fault = f"`{keyword}` {problem}: `{reference[:200]}`."
            return
        if keyword != "$ref":
            analysis.subprocess_reason = f"The schema uses `{keyword}`."
        yield resolved.contents, resolved.resolver


def _inspect_keywords(contents: dict[str, Any], analysis: SchemaAnalysis) -> int:
    """Analyze a subschema's own keywords; return the program size of its patterns."""
    for keyword in _UNEVALUATED_KEYWORDS:
        if keyword in contents:
            analysis.subprocess_reason = f"The schema uses `{keyword}`."
    pattern_properties = contents.get("patternProperties")
    pattern_cost = 0
    for pattern in (
        contents.get("pattern"),
        *(pattern_properties if isinstance(pattern_properties, dict) else ()),
    ):
        if not isinstance(pattern, str):
            continue
        if (compiled := dialects.compile_linear(pattern)) is not None:
            pattern_cost += compiled.programsize
        elif dialects.compile_pattern(pattern) is not None:
            analysis.subprocess_reason = (
                f"The pattern `{pattern[:200]}` can't be matched in linear time."
            )
        else:
            analysis.fault = f"The pattern `{pattern[:200]}` is not a regular expression."
    return pattern_cost


def _sum_costs(root: int, analysis: SchemaAnalysis) -> None:
    """Compute the maximum cost of one pass; shared parts count once per reference."""
    totals: dict[int, SchemaCost] = {}
    visited: set[int] = set()
    stack = [root]
    while stack:
        node = stack[-1]
        parts = analysis.edges[node]
        if node not in visited:
            visited.add(node)
            if any(part in visited and part not in totals for part in parts):
                analysis.subprocess_reason = "The schema is recursive."
                return
            stack.extend(part for part in parts if part not in totals)
            continue
        stack.pop()
        if node not in totals:
            totals[node] = _merge_costs(analysis.costs[node], [totals[part] for part in parts])
    analysis.cost = totals[root]
    if analysis.cost.chain > MAX_INLINE_CHAIN:
        analysis.subprocess_reason = (
            analysis.subprocess_reason or "The schema's parts follow each other too deeply."
        )
    elif analysis.cost.weight > MAX_INLINE_WEIGHT:
        analysis.subprocess_reason = (
            analysis.subprocess_reason or "The schema's references multiply its parts."
        )


def _merge_costs(node_cost: SchemaCost, children: list[SchemaCost]) -> SchemaCost:
    return SchemaCost(
        min(node_cost.weight + sum(part.weight for part in children), _MAX_COST),
        min(node_cost.pattern_cost + sum(part.pattern_cost for part in children), _MAX_COST),
        1 + max((part.chain for part in children), default=0),
    )


def _compute_choices_cost(contents: dict[str, Any]) -> int:
    """Return the cost of comparing with `enum` and `const`, in keyword steps."""
    choices = [contents[keyword] for keyword in ("enum", "const") if keyword in contents]
    size = measure_value(choices, max_values=MAX_VALUES)
    return 2 * size.nodes + size.values // 8


def _describe_fault(fault: Any) -> str:
    path = format_json_path(fault.absolute_path)
    return f"The schema is broken at `{path}`: {make_visible(fault.message, 200)}."
