"""Judge a schema once: may arguments be checked here, only in confinement, or not at all?"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import referencing.exceptions
from jsonschema_specifications import REGISTRY
from referencing import Specification
from referencing.jsonschema import DRAFT202012, specification_with

from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from mcp_servers.json_paths import json_path
from mcp_servers.schemas import dialects
from mcp_servers.schemas.sizes import measure

Verdict = Literal["inline", "confined", "refused"]

MOST_NODES = 2_000
MOST_VALUES = 50_000
DEEPEST = 64
INLINE_NODES = 200
INLINE_WEIGHT = 2_000
INLINE_CHAIN = 32
_VAST = 10**9

# These ask what other keywords have already looked at, and are slow in every implementation.
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
class Judgement:
    """The verdict on a schema and why it isn't better; `inline` needs no reason."""

    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one pass costs at most: steps for each value, steps for each character, depth."""

    weight: int = 1
    matching: int = 0
    chain: int = 1


@dataclass(slots=True)
class Reading:
    """What following a schema shows: its cost, and what keeps it from being checked inline."""

    cost: Cost = Cost()
    confining: str = ""
    fault: str = ""
    edges: dict[int, list[int]] = field(default_factory=dict)
    costs: dict[int, Cost] = field(default_factory=dict)


def judge(schema: Any) -> Judgement:
    """Return how arguments may be checked against `schema`: inline, confined or (refused) not.

    Bounds of DESIGN sections 3 and 5. Takes milliseconds; nothing is fetched or matched.
    """
    if not isinstance(schema, dict):
        return Judgement("refused", "The schema is not a JSON object.")
    size = measure(schema, most=MOST_VALUES, deepest=DEEPEST)
    if size.depth > DEEPEST:
        return Judgement(
            "refused", say("The schema is nested deeper than {deepest}.", deepest=DEEPEST)
        )
    if size.nodes > MOST_NODES or size.values > MOST_VALUES:
        return Judgement(
            "refused", say("The schema has more than {most_nodes} nodes.", most_nodes=MOST_NODES)
        )
    if size.unreadable:
        return Judgement("refused", "The schema holds text that is not valid Unicode.")
    try:
        fault = dialects.first_fault(schema)
    except RecursionError:
        return Judgement("refused", "The schema is nested too deeply to be read.")
    if fault is not None:
        return Judgement("refused", _broken(fault))
    reading = read(schema)
    if reading.fault:
        return Judgement("refused", reading.fault)
    if size.nodes > INLINE_NODES:
        return Judgement(
            "confined",
            say("The schema has more than {inline_nodes} nodes.", inline_nodes=INLINE_NODES),
        )
    if reading.confining:
        return Judgement("confined", reading.confining)
    return Judgement("inline")


def read(schema: dict[str, Any]) -> Reading:
    """Follow every subschema and reference of a schema within the bounds of `judge`."""
    reading = Reading()
    specification = specification_with(
        dialects.dialect_of(schema).META_SCHEMA.get("$schema", ""), default=DRAFT202012
    )
    root = specification.create_resource(schema)
    try:
        _follow(schema, REGISTRY.resolver_with_root(root), specification, reading)
    except _UNRESOLVABLE:
        reading.fault = reading.fault or "The schema's identifiers can't be resolved."
    if not reading.fault:
        _weigh(id(schema), reading)
    return reading


def _follow(
    schema: dict[str, Any], resolver: Any, specification: Specification[Any], reading: Reading
) -> None:
    waiting: list[tuple[Any, Any]] = [(schema, resolver)]
    while waiting and not reading.fault:
        contents, resolver = waiting.pop()
        if id(contents) in reading.edges or not isinstance(contents, dict):
            continue
        reading.costs[id(contents)] = Cost(
            1 + len(contents) + _choices(contents), _note(contents, reading)
        )
        if contents is not schema and "$schema" in contents:
            # jsonschema changes to that dialect's own class there, without our keywords.
            reading.confining = "A part of the schema is in a dialect of its own."
        found = [
            *_parts(contents, resolver, specification),
            *_targets(contents, resolver, reading),
        ]
        reading.edges[id(contents)] = [id(part) for part, _ in found if isinstance(part, dict)]
        waiting += found


def _parts(
    contents: dict[str, Any], resolver: Any, specification: Specification[Any]
) -> Iterator[tuple[Any, Any]]:
    # The dialect decides where subschemas stand.
    for part in specification.subresources_of(contents):
        yield part, resolver.in_subresource(specification.create_resource(part))


def _targets(
    contents: dict[str, Any], resolver: Any, reading: Reading
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


def _note(contents: dict[str, Any], reading: Reading) -> int:
    """Note what a subschema's own keywords demand; return the size of its patterns' programs."""
    for keyword in _LOOKING_BACK:
        if keyword in contents:
            reading.confining = f"The schema uses `{keyword}`."
    by_name = contents.get("patternProperties")
    matching = 0
    for pattern in (contents.get("pattern"), *(by_name if isinstance(by_name, dict) else ())):
        if not isinstance(pattern, str):
            continue
        if (compiled := dialects.linear(pattern)) is not None:
            matching += compiled.programsize
        elif dialects.engine(pattern) is not None:
            reading.confining = f"The pattern `{pattern[:200]}` can't be matched in linear time."
        else:
            reading.fault = f"The pattern `{pattern[:200]}` is not a regular expression."
    return matching


def _weigh(root: int, reading: Reading) -> None:
    """Add up what one pass costs at most; shared parts count as often as they are reached."""
    done: dict[int, Cost] = {}
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
            done[node] = _together(reading.costs[node], [done[part] for part in parts])
    reading.cost = done[root]
    if reading.cost.chain > INLINE_CHAIN:
        reading.confining = reading.confining or "The schema's parts follow each other too deeply."
    elif reading.cost.weight > INLINE_WEIGHT:
        reading.confining = reading.confining or "The schema's references multiply its parts."


def _together(own: Cost, below: list[Cost]) -> Cost:
    return Cost(
        min(own.weight + sum(part.weight for part in below), _VAST),
        min(own.matching + sum(part.matching for part in below), _VAST),
        1 + max((part.chain for part in below), default=0),
    )


def _choices(contents: dict[str, Any]) -> int:
    """Return what comparing with fixed values costs, in steps of one keyword."""
    fixed = [contents[keyword] for keyword in ("enum", "const") if keyword in contents]
    size = measure(fixed, most=MOST_VALUES, deepest=DEEPEST)
    return 2 * size.nodes + size.values // 8


def _broken(fault: Any) -> str:
    place = json_path(fault.absolute_path)
    return f"The schema is broken at `{place}`: {visible(fault.message, 200)}."
