"""Skills and workflows in the configuration file: read, compare, export."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from agents.assignments import list_agent_slugs
from agents.config_file.field_readers import ConfigLocation, FieldReader
from agents.models import Skill, Trigger, Workflow
from agents.skills.services import SkillSpec
from agents.skills.templates import read_arguments
from agents.workflows.definitions import MEMBERS
from agents.workflows.services import WorkflowSpec
from agents.workflows.triggers import TriggerSpec
from bonobot.core.text.json_reader import SourceNode

BESIDE = ("enabled", "agents", "triggers")
_TEXTS = ("kind", "cron", "time_zone")
_NUMBERS = ("every_s", "per_minute")
_TRIGGER = (*_TEXTS, *_NUMBERS, "enabled", "inputs")


@dataclass(frozen=True, kw_only=True)
class WantedWorkflow:
    """A workflow by name, with its definition and settings."""

    name: str
    place: ConfigLocation
    definition: Mapping[str, Any]
    beside: Mapping[str, Any]
    # None: the file doesn't list triggers.
    triggers: tuple[TriggerSpec, ...] | None = None

    @property
    def spec(self) -> WorkflowSpec:
        """The specification for the workflow service."""
        source = yaml.safe_dump(dict(self.definition), sort_keys=False, allow_unicode=True)
        return WorkflowSpec(name=self.name, source=source, **self.beside)


def read_workflow(
    name: str, place: ConfigLocation, members: FieldReader, node: SourceNode
) -> WantedWorkflow:
    """Read a workflow; its definition is validated when it is applied."""
    enabled = members.flag("enabled")
    agents = members.list("agents") if members.has("agents") else None
    members.refuse_others((*MEMBERS, *BESIDE))
    whole = node.plain() if isinstance(node.value, dict) else {}
    said = {"enabled": enabled, "agents": agents}
    return WantedWorkflow(
        name=name,
        place=place,
        definition={key: value for key, value in whole.items() if key not in BESIDE},
        beside={key: value for key, value in said.items() if value is not None},
        triggers=_read_triggers(members) if members.has("triggers") else None,
    )


def _read_triggers(members: FieldReader) -> tuple[TriggerSpec, ...]:
    found = []
    inner = members.inner("triggers")
    for name, _, _ in members.children("triggers"):
        one = inner.inner(name) if inner else None
        if one is None:
            continue
        said = one.texts_of(*_TEXTS) | {number: one.number(number) for number in _NUMBERS}
        inputs = one.plain("inputs") if one.object("inputs") else None
        one.refuse_others(_TRIGGER)
        found.append(TriggerSpec(name=name, enabled=one.flag("enabled"), inputs=inputs, **said))
    return tuple(found)


def list_workflow_changes(row: Workflow, wanted: WantedWorkflow) -> list[str]:
    """Return the fields in which a stored workflow differs."""
    changed = [] if row.definition == wanted.definition else ["definition"]
    stored = {"enabled": row.enabled, "agents": list_agent_slugs(row)}
    for name, value in wanted.beside.items():
        said = sorted(value) if name == "agents" else value
        if said != stored[name]:
            changed.append(name)
    return changed if _has_same_triggers(row, wanted) else [*changed, "triggers"]


def _has_same_triggers(row: Workflow, wanted: WantedWorkflow) -> bool:
    if wanted.triggers is None:
        return True
    stored = {one.name: one for one in row.triggers.all()}
    return stored.keys() == {one.name for one in wanted.triggers} and all(
        getattr(stored[one.name], name) == value
        for one in wanted.triggers
        for name in _TRIGGER
        if (value := getattr(one, name)) is not None
    )


def export_workflows(rows: Iterable[Workflow]) -> dict[str, Any]:
    """Return workflows in the file's format."""
    found = {}
    for row in rows:
        beside: dict[str, Any] = {} if row.enabled else {"enabled": False}
        if agents := list_agent_slugs(row):
            beside["agents"] = agents
        if triggers := {one.name: _export_trigger(one) for one in row.triggers.all()}:
            beside["triggers"] = triggers
        found[row.name] = {**row.definition, **beside}
    return found


def _export_trigger(row: Trigger) -> dict[str, Any]:
    """Return a trigger without its secret and default values."""
    blank = Trigger()
    found: dict[str, Any] = {"kind": row.kind}
    for name in (*_TEXTS[1:], *_NUMBERS, "enabled", "inputs"):
        if (value := getattr(row, name)) != getattr(blank, name):
            found[name] = value
    return found


TEXTS = ("title", "description", "text")
_ARGUMENT = ("name", "description", "required", "default", "choices")


@dataclass(frozen=True, kw_only=True)
class WantedSkill:
    """A skill by name; fields not in `values` stay unchanged."""

    name: str
    place: ConfigLocation
    values: Mapping[str, Any]

    @property
    def spec(self) -> SkillSpec:
        """The specification for the skill service."""
        return SkillSpec(name=self.name, **self.values)


def read_skill(name: str, place: ConfigLocation, members: FieldReader) -> WantedSkill:
    """Read a skill, collecting problems."""
    values = members.texts_of(*TEXTS)
    values["enabled"] = members.flag("enabled")
    values["agents"] = members.list("agents") if members.has("agents") else None
    arguments = members.items("arguments")
    if arguments is not None:
        values["arguments"] = [_read_argument(members, node.plain()) for node in arguments]
    members.refuse_others((*TEXTS, "enabled", "agents", "arguments"))
    said = {name: value for name, value in values.items() if value is not None}
    return WantedSkill(name=name, place=place, values=said)


def _read_argument(members: FieldReader, said: Any) -> dict[str, Any]:
    if isinstance(said, dict):
        return said
    members.refuse("arguments", "bad_value", f"Each has: {', '.join(_ARGUMENT)}.")
    return {"name": "broken"}


def list_skill_changes(row: Skill, wanted: WantedSkill) -> list[str]:
    """Return the fields in which a stored skill differs; raises `InvalidInput`."""
    said = dict(wanted.values)
    if "arguments" in said:
        said["arguments"] = [one.as_dict() for one in read_arguments(said["arguments"])]
    stored: dict[str, Any] = {name: getattr(row, name) for name in (*TEXTS, "enabled", "arguments")}
    stored["agents"] = list_agent_slugs(row)
    said["agents"] = sorted(said["agents"]) if "agents" in said else stored["agents"]
    return [name for name, value in said.items() if stored[name] != value]


def export_skills(rows: Iterable[Skill]) -> dict[str, Any]:
    """Return skills in the file's format."""
    return {row.name: _export_skill(row) for row in rows}


def _export_skill(row: Skill) -> dict[str, Any]:
    found = {name: getattr(row, name) for name in TEXTS if getattr(row, name)}
    if row.arguments:
        found["arguments"] = [
            {name: value for name, value in one.items() if value} for one in row.arguments
        ]
    if not row.enabled:
        found["enabled"] = False
    return found | {"agents": list_agent_slugs(row)}
