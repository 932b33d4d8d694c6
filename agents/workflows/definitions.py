"""What a workflow says: read from YAML, checked, each fault with its path. Pure.

A workflow runs as an agent: its steps are calls of that agent's tools, one after the other. What a
step takes is written as values, with `${/pointer}` for what is known by then; whether it runs is
asked of the same values as JSON Schemas.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agents.workflows.references import pointers
from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from mcp_servers.schemas import judge

MOST_STEPS = 50
LONGEST_RUN_S = 86_400
DEFAULT_RUN_S = 3_600
MEMBERS = ("description", "agent", "inputs", "steps", "outputs", "max_run_s")
_STEP = ("id", "call", "arguments", "agent", "message", "when", "on_error")
_ID = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SLUG = re.compile(r"[-a-zA-Z0-9_]{1,64}")
ROOTS = ("inputs", "steps")
ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class StepText:
    """One step: a call of a tool, or a question to an agent."""

    id: str
    call: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    agent: str = ""
    message: str = ""
    when: Mapping[str, Any] = field(default_factory=dict)
    on_error: Literal["stop", "continue"] = "stop"


@dataclass(frozen=True)
class WorkflowText:
    """What a workflow says; `agent` is as whom it runs."""

    agent: str
    steps: tuple[StepText, ...]
    description: str = ""
    inputs: Mapping[str, Any] = field(default_factory=lambda: dict(ANY_OBJECT))
    outputs: Mapping[str, Any] = field(default_factory=dict)
    max_run_s: int = DEFAULT_RUN_S


def read_workflow(said: Any) -> WorkflowText:
    """Return what plain values (of YAML or JSON) say; raises `Invalid` naming the path."""
    whole = _object(said, "")
    _refuse_others(whole, MEMBERS, "")
    inputs = whole.get("inputs", ANY_OBJECT)
    _check_schema(inputs, "inputs")
    if not isinstance(inputs, dict) or inputs.get("type", "object") != "object":
        raise _wrong("inputs", "Inputs are an object.", "Write a JSON Schema of type object.")
    steps = _steps(whole.get("steps"))
    known = {"inputs": True, **{step.id: True for step in steps}}
    _check_references(whole.get("outputs", {}), "outputs", known)
    return WorkflowText(
        agent=_text(whole, "agent", "", pattern=_SLUG),
        steps=steps,
        description=_text(whole, "description", "", required=False),
        inputs=inputs,
        outputs=_object(whole.get("outputs", {}), "outputs"),
        max_run_s=_seconds(whole.get("max_run_s", DEFAULT_RUN_S)),
    )


def _steps(said: Any) -> tuple[StepText, ...]:
    if not isinstance(said, list) or not said:
        raise _wrong("steps", "A workflow has steps.", "Write a list of at least one.")
    if len(said) > MOST_STEPS:
        raise _wrong(
            "steps",
            say("There are {count} steps.", count=len(said)),
            say("At most {most_steps}.", most_steps=MOST_STEPS),
        )
    found: list[StepText] = []
    for index, one in enumerate(said):
        found.append(_step(one, f"steps[{index}]", {step.id: True for step in found}))
    return tuple(found)


def _step(said: Any, path: str, before: Mapping[str, bool]) -> StepText:
    whole = _object(said, path)
    _refuse_others(whole, _STEP, path)
    name = _text(whole, "id", path, pattern=_ID)
    if name in before:
        raise _wrong(
            f"{path}.id", say("There are two steps `{name}`.", name=name), "Give one another id."
        )
    if ("call" in whole) == ("agent" in whole):
        raise _wrong(path, "A step calls a tool or asks an agent.", "Write `call` or `agent`.")
    kind = ("call", "arguments") if "call" in whole else ("agent", "message")
    other = {"arguments", "message"} - set(kind)
    if strange := sorted(other & whole.keys()):
        raise _wrong(
            f"{path}.{strange[0]}",
            say("`{strange}` isn't of a `{kind}`.", strange=strange[0], kind=kind[0]),
            "Leave it.",
        )
    for member in (kind[1], "when"):
        _check_references(whole.get(member), f"{path}.{member}", before)
    return StepText(
        id=name,
        call=_text(whole, "call", path) if "call" in whole else "",
        arguments=_object(whole.get("arguments", {}), f"{path}.arguments"),
        agent=_text(whole, "agent", path, pattern=_SLUG) if "agent" in whole else "",
        message=_text(whole, "message", path) if "agent" in whole else "",
        when=_conditions(whole.get("when", {}), f"{path}.when", before),
        on_error=_on_error(whole.get("on_error", "stop"), path),
    )


def _conditions(said: Any, path: str, before: Mapping[str, bool]) -> Mapping[str, Any]:
    whole = _object(said, path)
    for pointer, schema in whole.items():
        where = f"{path}.{pointer[:100]}"
        _check_pointer(pointer, where, before)
        _check_schema(schema, where)
    return whole


def _check_references(said: Any, path: str, before: Mapping[str, bool]) -> None:
    """Raise `Invalid` for a `${…}` that means nothing which is known by then."""
    for where, pointer in _found(said, path):
        _check_pointer(pointer, where, before)


def _found(said: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(said, str):
        yield from ((path, pointer) for pointer in pointers(said))
    elif isinstance(said, dict):
        for key, value in said.items():
            yield from _found(value, f"{path}.{key}")
    elif isinstance(said, list):
        for index, value in enumerate(said):
            yield from _found(value, f"{path}[{index}]")


def _check_pointer(pointer: str, path: str, before: Mapping[str, bool]) -> None:
    parts = pointer.split("/")
    if not pointer.startswith("/") or parts[1] not in ROOTS:
        raise _wrong(
            path,
            say("`{pointer}` points to nothing.", pointer=pointer[:100]),
            "Begin with /inputs/… or /steps/ID/…, such as /steps/fetch/text.",
            code="bad_reference",
        )
    if parts[1] == "steps" and (len(parts) < 3 or parts[2] not in before):
        raise _wrong(
            path,
            say("`{pointer}` means no step before this one.", pointer=pointer[:100]),
            say(
                "Steps before it: {before}.",
                before=", ".join(one for one in before if one != "inputs") or "none",
            ),
            code="bad_reference",
        )


def _check_schema(schema: Any, path: str) -> None:
    judged = judge(schema)
    if judged.verdict != "inline":
        raise _wrong(
            path,
            f"This JSON Schema can't be used. {judged.reason}".strip(),
            "Write a small JSON Schema, without recursion.",
            code="unusable_schema",
        )


def _object(said: Any, path: str) -> dict[str, Any]:
    if not isinstance(said, dict) or not all(isinstance(key, str) for key in said):
        raise _wrong(path, "It must be an object.", "Write name: value.")
    return said


def _text(
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
        raise _wrong(
            where, say("`{name}` is a text.", name=name), say("Write the {name}.", name=name)
        )
    if pattern and not pattern.fullmatch(said):
        raise _wrong(
            where,
            say("{said!r} is no {name}.", said=said[:100], name=name),
            "Use letters, digits and `_`.",
        )
    return said


def _on_error(said: Any, path: str) -> Literal["stop", "continue"]:
    if said == "continue":
        return "continue"
    if said == "stop":
        return "stop"
    raise _wrong(
        f"{path}.on_error", say("{said!r} is none.", said=str(said)[:100]), "Use stop or continue."
    )


def _seconds(said: Any) -> int:
    if not isinstance(said, int) or isinstance(said, bool) or not 1 <= said <= LONGEST_RUN_S:
        raise _wrong(
            "max_run_s",
            "A whole number of seconds.",
            say("From 1 to {longest_run_s}.", longest_run_s=LONGEST_RUN_S),
        )
    return said


def _refuse_others(whole: Mapping[str, Any], known: tuple[str, ...], path: str) -> None:
    if strange := sorted(set(whole) - set(known)):
        where = f"{path}.{strange[0][:100]}".lstrip(".")
        raise _wrong(
            where,
            say("There is no member `{strange}` here.", strange=strange[0][:100]),
            say("Members: {known}.", known=", ".join(known)),
            code="unknown_field",
        )


def _wrong(path: str, detail: str, remedy: str, code: str = "bad_workflow") -> Invalid:
    return Invalid(detail, code=code, field=path, remedy=remedy)
