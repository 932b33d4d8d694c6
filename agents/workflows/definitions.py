"""Workflow definitions and their `${…}` references. Pure.

A workflow runs as an agent: its steps are calls of that agent's tools, in order. A step's arguments
may contain `${/pointer}` references to inputs and earlier steps; its conditions are JSON Schemas
for the same values.

A string that is a single reference is replaced by the value itself; within other text, a value that
isn't a string is written as JSON. `${/inputs/tone:-dry}` has a default.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agents.models.workflows import DEFAULT_RUN_S
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.canonical_json import to_canonical_json
from mcp_servers.schemas import classify_schema

_REFERENCE = re.compile(r"\$\{(/[^}]*?)(?::-([^}]*))?\}")
_MARKED = re.compile(r"\$\{([^}]*)\}")
Told = Callable[[str, str], str]


class UnresolvedReference(InvalidInput):
    """A reference has no value in this run."""

    code = "unresolved_reference"


def iterate_pointers(text: str) -> Iterator[str]:
    """Yield the pointers in a text; the content of an invalid `${…}` as it is."""
    for found in _MARKED.finditer(text):
        known = _REFERENCE.fullmatch(found.group())
        yield known[1] if known else found[1]


def resolve_pointer(values: Mapping[str, Any], pointer: str) -> tuple[bool, Any]:
    """Return whether a pointer has a value, and the value."""
    found: Any = values
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return False, None
    return True, found


def fill_references(
    said: Any, values: Mapping[str, Any], told: Told = lambda pointer, text: text
) -> Any:
    """Return a value with its references replaced; references in replaced values stay.

    `format_value` formats a string value by its pointer. Raises `UnresolvedReference`.
    """
    if isinstance(said, str):
        return _fill_text(said, values, told)
    if isinstance(said, dict):
        return {key: fill_references(value, values, told) for key, value in said.items()}
    if isinstance(said, list):
        return [fill_references(value, values, told) for value in said]
    return said


def _fill_text(said: str, values: Mapping[str, Any], told: Told) -> Any:
    whole = _REFERENCE.fullmatch(said)
    if whole is not None:
        found = _value(whole, values)
        return told(whole[1], found) if isinstance(found, str) else found

    def put(one: re.Match[str]) -> str:
        found = _value(one, values)
        return told(one[1], found if isinstance(found, str) else to_canonical_json(found))

    return _REFERENCE.sub(put, said)


def _value(one: re.Match[str], values: Mapping[str, Any]) -> Any:
    there, found = resolve_pointer(values, one[1])
    if there and found is not None:
        return found
    if one[2] is not None:
        return one[2]
    raise UnresolvedReference(
        format_message("`{one}` means nothing in this run.", one=one[1][:200]),
        field=one[1][:200],
        remedy="Correct it, say what stands instead (`${/…:-nothing}`), or ask with `when`.",
    )


MOST_STEPS = 50
LONGEST_RUN_S = 86_400
MEMBERS = ("description", "agent", "inputs", "steps", "outputs", "max_run_s")
_STEP = ("id", "call", "arguments", "agent", "message", "when", "on_error")
_ID = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SLUG = re.compile(r"[-a-zA-Z0-9_]{1,64}")
ROOTS = ("inputs", "steps")
ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class StepDefinition:
    """A step: a call of a tool, or a message to an agent."""

    id: str
    call: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    agent: str = ""
    message: str = ""
    when: Mapping[str, Any] = field(default_factory=dict)
    on_error: Literal["stop", "continue"] = "stop"


@dataclass(frozen=True)
class WorkflowDefinition:
    """A parsed workflow; `agent` is the agent that it runs as."""

    agent: str
    steps: tuple[StepDefinition, ...]
    description: str = ""
    inputs: Mapping[str, Any] = field(default_factory=lambda: dict(ANY_OBJECT))
    outputs: Mapping[str, Any] = field(default_factory=dict)
    max_run_s: int = DEFAULT_RUN_S


def read_workflow(said: Any) -> WorkflowDefinition:
    """Parse a definition's plain values; raises `InvalidInput` with the path."""
    whole = _check_object(said, "")
    _check_known_fields(whole, MEMBERS, "")
    inputs = whole.get("inputs", ANY_OBJECT)
    _check_schema(inputs, "inputs")
    if not isinstance(inputs, dict) or inputs.get("type", "object") != "object":
        raise _build_definition_error(
            "inputs", "Inputs are an object.", "Write a JSON Schema of type object."
        )
    steps = _parse_steps(whole.get("steps"))
    known = {"inputs": True, **{step.id: True for step in steps}}
    _check_references(whole.get("outputs", {}), "outputs", known)
    return WorkflowDefinition(
        agent=_parse_text(whole, "agent", "", pattern=_SLUG),
        steps=steps,
        description=_parse_text(whole, "description", "", required=False),
        inputs=inputs,
        outputs=_check_object(whole.get("outputs", {}), "outputs"),
        max_run_s=_parse_max_run(whole.get("max_run_s", DEFAULT_RUN_S)),
    )


def _parse_steps(said: Any) -> tuple[StepDefinition, ...]:
    if not isinstance(said, list) or not said:
        raise _build_definition_error(
            "steps", "A workflow has steps.", "Write a list of at least one."
        )
    if len(said) > MOST_STEPS:
        raise _build_definition_error(
            "steps",
            format_message("There are {count} steps.", count=len(said)),
            format_message("At most {most_steps}.", most_steps=MOST_STEPS),
        )
    found: list[StepDefinition] = []
    for index, one in enumerate(said):
        found.append(_parse_step(one, f"steps[{index}]", {step.id: True for step in found}))
    return tuple(found)


def _parse_step(said: Any, path: str, before: Mapping[str, bool]) -> StepDefinition:
    whole = _check_object(said, path)
    _check_known_fields(whole, _STEP, path)
    name = _parse_text(whole, "id", path, pattern=_ID)
    if name in before:
        raise _build_definition_error(
            f"{path}.id",
            format_message("There are two steps `{name}`.", name=name),
            "Give one another id.",
        )
    if ("call" in whole) == ("agent" in whole):
        raise _build_definition_error(
            path, "A step calls a tool or asks an agent.", "Write `call` or `agent`."
        )
    kind = ("call", "arguments") if "call" in whole else ("agent", "message")
    other = {"arguments", "message"} - set(kind)
    if strange := sorted(other & whole.keys()):
        raise _build_definition_error(
            f"{path}.{strange[0]}",
            format_message("`{strange}` isn't of a `{kind}`.", strange=strange[0], kind=kind[0]),
            "Leave it.",
        )
    for member in (kind[1], "when"):
        _check_references(whole.get(member), f"{path}.{member}", before)
    return StepDefinition(
        id=name,
        call=_parse_text(whole, "call", path) if "call" in whole else "",
        arguments=_check_object(whole.get("arguments", {}), f"{path}.arguments"),
        agent=_parse_text(whole, "agent", path, pattern=_SLUG) if "agent" in whole else "",
        message=_parse_text(whole, "message", path) if "agent" in whole else "",
        when=_parse_conditions(whole.get("when", {}), f"{path}.when", before),
        on_error=_on_error(whole.get("on_error", "stop"), path),
    )


def _parse_conditions(said: Any, path: str, before: Mapping[str, bool]) -> Mapping[str, Any]:
    whole = _check_object(said, path)
    for pointer, schema in whole.items():
        where = f"{path}.{pointer[:100]}"
        _check_pointer(pointer, where, before)
        _check_schema(schema, where)
    return whole


def _check_references(said: Any, path: str, before: Mapping[str, bool]) -> None:
    """Raise `InvalidInput` for a `${…}` that isn't an input or an earlier step."""
    for where, pointer in _iterate_references(said, path):
        _check_pointer(pointer, where, before)


def _iterate_references(said: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(said, str):
        yield from ((path, pointer) for pointer in iterate_pointers(said))
    elif isinstance(said, dict):
        for key, value in said.items():
            yield from _iterate_references(value, f"{path}.{key}")
    elif isinstance(said, list):
        for index, value in enumerate(said):
            yield from _iterate_references(value, f"{path}[{index}]")


def _check_pointer(pointer: str, path: str, before: Mapping[str, bool]) -> None:
    parts = pointer.split("/")
    if not pointer.startswith("/") or parts[1] not in ROOTS:
        raise _build_definition_error(
            path,
            format_message("`{pointer}` points to nothing.", pointer=pointer[:100]),
            "Begin with /inputs/… or /steps/ID/…, such as /steps/fetch/text.",
            code="bad_reference",
        )
    if parts[1] == "steps" and (len(parts) < 3 or parts[2] not in before):
        raise _build_definition_error(
            path,
            format_message("`{pointer}` means no step before this one.", pointer=pointer[:100]),
            format_message(
                "Steps before it: {before}.",
                before=", ".join(one for one in before if one != "inputs") or "none",
            ),
            code="bad_reference",
        )


def _check_schema(schema: Any, path: str) -> None:
    judged = classify_schema(schema)
    if judged.verdict != "inline":
        raise _build_definition_error(
            path,
            f"This JSON Schema can't be used. {judged.reason}".strip(),
            "Write a small JSON Schema, without recursion.",
            code="unusable_schema",
        )


def _check_object(said: Any, path: str) -> dict[str, Any]:
    if not isinstance(said, dict) or not all(isinstance(key, str) for key in said):
        raise _build_definition_error(path, "It must be an object.", "Write name: value.")
    return said


def _parse_text(
    whole: Mapping[str, Any],
    name: str,
    path: str,
    *,
    required: bool = True,
    pattern: re.Pattern[str] | None = None,
) -> str:
    where = f"{path}.{name}".lstrip(".")
    said = whole.get(name, "")
    if not isinstance(said, str) or (required and not said.strip()):
        raise _build_definition_error(
            where,
            format_message("`{name}` is a text.", name=name),
            format_message("Write the {name}.", name=name),
        )
    if pattern and not pattern.fullmatch(said):
        raise _build_definition_error(
            where,
            format_message("{said!r} is no {name}.", said=said[:100], name=name),
            "Use letters, digits and `_`.",
        )
    return said


def _on_error(said: Any, path: str) -> Literal["stop", "continue"]:
    if said == "continue":
        return "continue"
    if said == "stop":
        return "stop"
    raise _build_definition_error(
        f"{path}.on_error",
        format_message("{said!r} is none.", said=str(said)[:100]),
        "Use stop or continue.",
    )


def _parse_max_run(said: Any) -> int:
    if not isinstance(said, int) or isinstance(said, bool) or not 1 <= said <= LONGEST_RUN_S:
        raise _build_definition_error(
            "max_run_s",
            "A whole number of seconds.",
            format_message("From 1 to {longest_run_s}.", longest_run_s=LONGEST_RUN_S),
        )
    return said


def _check_known_fields(whole: Mapping[str, Any], known: tuple[str, ...], path: str) -> None:
    if strange := sorted(set(whole) - set(known)):
        where = f"{path}.{strange[0][:100]}".lstrip(".")
        raise _build_definition_error(
            where,
            format_message("There is no member `{strange}` here.", strange=strange[0][:100]),
            format_message("Members: {known}.", known=", ".join(known)),
            code="unknown_field",
        )


def _build_definition_error(
    path: str, detail: str, remedy: str, code: str = "bad_workflow"
) -> InvalidInput:
    return InvalidInput(detail, code=code, field=path, remedy=remedy)
