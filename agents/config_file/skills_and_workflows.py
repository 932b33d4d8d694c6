"""Skills and workflows in the configuration file: read, compare, export."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from agents.assignments import list_agent_slugs
from agents.config_file.field_readers import ConfigLocation, FieldReader
from agents.models import Skill, Trigger, Workflow
from agents.models.skills import SKILL_TEXTS
from agents.skills import SkillSpec, read_arguments
from agents.workflows.definitions import WORKFLOW_FIELDS
from agents.workflows.services import WorkflowSpec
from agents.workflows.triggers import TriggerSpec
from bonobot.core.text.json_reader import SourceNode

WORKFLOW_SETTINGS = ("enabled", "agents", "triggers")
_TRIGGER_TEXTS = ("kind", "cron", "time_zone")
_TRIGGER_NUMBERS = ("every_s", "per_minute")
_TRIGGER_FIELDS = (*_TRIGGER_TEXTS, *_TRIGGER_NUMBERS, "enabled", "inputs")
_ARGUMENT_FIELDS = ("name", "description", "required", "default", "choices")


@dataclass(frozen=True, kw_only=True)
class WantedWorkflow:
    """A workflow by name, with its definition and settings."""

    name: str
    place: ConfigLocation
    definition: Mapping[str, Any]
    settings: Mapping[str, Any]
    # None: the file doesn't list triggers.
    triggers: tuple[TriggerSpec, ...] | None = None

    @property
    def spec(self) -> WorkflowSpec:
        """The specification for the workflow service."""
        source = yaml.safe_dump(dict(self.definition), sort_keys=False, allow_unicode=True)
        return WorkflowSpec(name=self.name, source=source, **self.settings)


def read_workflow(
    name: str, location: ConfigLocation, reader: FieldReader, node: SourceNode
) -> WantedWorkflow:
    """Read a workflow; its definition is validated when it is applied."""
    enabled = reader.read_boolean("enabled")
    agents = reader.read_text_list("agents") if reader.has_field("agents") else None
    reader.reject_unknown_fields((*WORKFLOW_FIELDS, *WORKFLOW_SETTINGS))
    fields = node.to_python() if isinstance(node.value, dict) else {}
    settings = {"enabled": enabled, "agents": agents}
    return WantedWorkflow(
        name=name,
        place=location,
        definition={key: value for key, value in fields.items() if key not in WORKFLOW_SETTINGS},
        settings={key: value for key, value in settings.items() if value is not None},
        triggers=_read_triggers(reader) if reader.has_field("triggers") else None,
    )


def _read_triggers(reader: FieldReader) -> tuple[TriggerSpec, ...]:
    triggers = []
    section = reader.read_nested_fields("triggers")
    for name, _, _ in reader.list_entries("triggers"):
        trigger = section.read_nested_fields(name) if section else None
        if trigger is None:
            continue
        values = trigger.read_texts(*_TRIGGER_TEXTS) | {
            number: trigger.read_integer(number) for number in _TRIGGER_NUMBERS
        }
        inputs = trigger.read_value("inputs") if trigger.read_object("inputs") else None
        trigger.reject_unknown_fields(_TRIGGER_FIELDS)
        triggers.append(
            TriggerSpec(name=name, enabled=trigger.read_boolean("enabled"), inputs=inputs, **values)
        )
    return tuple(triggers)


def list_workflow_changes(row: Workflow, entry: WantedWorkflow) -> list[str]:
    """Return the fields in which a stored workflow differs."""
    changed_names = [] if row.definition == entry.definition else ["definition"]
    stored_values = {"enabled": row.enabled, "agents": list_agent_slugs(row)}
    for name, value in entry.settings.items():
        wanted_value = sorted(value) if name == "agents" else value
        if wanted_value != stored_values[name]:
            changed_names.append(name)
    return changed_names if _has_same_triggers(row, entry) else [*changed_names, "triggers"]


def _has_same_triggers(row: Workflow, entry: WantedWorkflow) -> bool:
    if entry.triggers is None:
        return True
    stored_values = {trigger.name: trigger for trigger in row.triggers.all()}
    return stored_values.keys() == {trigger.name for trigger in entry.triggers} and all(
        getattr(stored_values[trigger.name], name) == value
        for trigger in entry.triggers
        for name in _TRIGGER_FIELDS
        if (value := getattr(trigger, name)) is not None
    )


def export_workflows(rows: Iterable[Workflow]) -> dict[str, Any]:
    exported = {}
    for row in rows:
        settings: dict[str, Any] = {} if row.enabled else {"enabled": False}
        if agents := list_agent_slugs(row):
            settings["agents"] = agents
        if triggers := {trigger.name: _export_trigger(trigger) for trigger in row.triggers.all()}:
            settings["triggers"] = triggers
        exported[row.name] = {**row.definition, **settings}
    return exported


def _export_trigger(row: Trigger) -> dict[str, Any]:
    """Return a trigger without its secret and default values."""
    defaults = Trigger()
    exported: dict[str, Any] = {"kind": row.kind}
    for name in (*_TRIGGER_TEXTS[1:], *_TRIGGER_NUMBERS, "enabled", "inputs"):
        if (value := getattr(row, name)) != getattr(defaults, name):
            exported[name] = value
    return exported


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


def read_skill(name: str, location: ConfigLocation, reader: FieldReader) -> WantedSkill:
    """Read a skill, collecting problems."""
    values = reader.read_texts(*SKILL_TEXTS)
    values["enabled"] = reader.read_boolean("enabled")
    values["agents"] = reader.read_text_list("agents") if reader.has_field("agents") else None
    arguments = reader.read_items("arguments")
    if arguments is not None:
        values["arguments"] = [_read_argument(reader, node.to_python()) for node in arguments]
    reader.reject_unknown_fields((*SKILL_TEXTS, "enabled", "agents", "arguments"))
    given_values = {name: value for name, value in values.items() if value is not None}
    return WantedSkill(name=name, place=location, values=given_values)


def _read_argument(reader: FieldReader, argument: Any) -> dict[str, Any]:
    if isinstance(argument, dict):
        return argument
    remedy = f"An argument has the fields {', '.join(_ARGUMENT_FIELDS)}."
    reader.reject_field("arguments", "bad_value", remedy)
    return {"name": "broken"}


def list_skill_changes(row: Skill, entry: WantedSkill) -> list[str]:
    """Return the fields in which a stored skill differs; raises `InvalidInput`."""
    wanted_values = dict(entry.values)
    if "arguments" in wanted_values:
        wanted_values["arguments"] = [
            argument.as_dict() for argument in read_arguments(wanted_values["arguments"])
        ]
    stored_values: dict[str, Any] = {
        name: getattr(row, name) for name in (*SKILL_TEXTS, "enabled", "arguments")
    }
    stored_values["agents"] = list_agent_slugs(row)
    wanted_values["agents"] = (
        sorted(wanted_values["agents"]) if "agents" in wanted_values else stored_values["agents"]
    )
    return [name for name, value in wanted_values.items() if stored_values[name] != value]


def export_skills(rows: Iterable[Skill]) -> dict[str, Any]:
    return {row.name: _export_skill(row) for row in rows}


def _export_skill(row: Skill) -> dict[str, Any]:
    exported = {name: getattr(row, name) for name in SKILL_TEXTS if getattr(row, name)}
    if row.arguments:
        exported["arguments"] = [
            {name: value for name, value in argument.items() if value} for argument in row.arguments
        ]
    if not row.enabled:
        exported["enabled"] = False
    return exported | {"agents": list_agent_slugs(row)}
