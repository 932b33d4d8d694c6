"""Workflows in the configuration file: read, compared and exported."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from agents.models import Trigger, Workflow
from agents.named import agents_of
from agents.workflows.definitions import MEMBERS
from agents.workflows.keeping import WorkflowSpec
from agents.workflows.triggers import TriggerSpec
from bonobot.portability.members import Members, Place
from mcp_servers.portability.reader import Node

BESIDE = ("enabled", "agents", "triggers")
_TEXTS = ("kind", "cron", "time_zone")
_NUMBERS = ("every_s", "per_minute")
_TRIGGER = (*_TEXTS, *_NUMBERS, "enabled", "inputs")


@dataclass(frozen=True, kw_only=True)
class WantedWorkflow:
    """A workflow by its name: its definition as plain values, and what stands beside it."""

    name: str
    place: Place
    definition: Mapping[str, Any]
    beside: Mapping[str, Any]
    # All that start it by itself; None where the file doesn't say.
    triggers: tuple[TriggerSpec, ...] | None = None

    @property
    def spec(self) -> WorkflowSpec:
        """Return it as it is written by hand."""
        source = yaml.safe_dump(dict(self.definition), sort_keys=False, allow_unicode=True)
        return WorkflowSpec(name=self.name, source=source, **self.beside)


def read_workflow(name: str, place: Place, members: Members, node: Node) -> WantedWorkflow:
    """Return what a file says of a workflow; its definition is checked when it is carried out."""
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
        triggers=_triggers(members) if members.has("triggers") else None,
    )


def _triggers(members: Members) -> tuple[TriggerSpec, ...]:
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


def changed_members(row: Workflow, wanted: WantedWorkflow) -> list[str]:
    """Return the members by which a stored workflow is another one."""
    changed = [] if row.definition == wanted.definition else ["definition"]
    stored = {"enabled": row.enabled, "agents": agents_of(row)}
    for name, value in wanted.beside.items():
        said = sorted(value) if name == "agents" else value
        if said != stored[name]:
            changed.append(name)
    return changed if _same_triggers(row, wanted) else [*changed, "triggers"]


def _same_triggers(row: Workflow, wanted: WantedWorkflow) -> bool:
    if wanted.triggers is None:
        return True
    stored = {one.name: one for one in row.triggers.all()}
    return stored.keys() == {one.name for one in wanted.triggers} and all(
        getattr(stored[one.name], name) == value
        for one in wanted.triggers
        for name in _TRIGGER
        if (value := getattr(one, name)) is not None
    )


def exported(rows: Iterable[Workflow]) -> dict[str, Any]:
    """Return workflows as the file has them."""
    found = {}
    for row in rows:
        beside: dict[str, Any] = {} if row.enabled else {"enabled": False}
        if agents := agents_of(row):
            beside["agents"] = agents
        if triggers := {one.name: _exported(one) for one in row.triggers.all()}:
            beside["triggers"] = triggers
        found[row.name] = {**row.definition, **beside}
    return found


def _exported(row: Trigger) -> dict[str, Any]:
    """Return a trigger without its secret, and without what it has by default."""
    blank = Trigger()
    found: dict[str, Any] = {"kind": row.kind}
    for name in (*_TEXTS[1:], *_NUMBERS, "enabled", "inputs"):
        if (value := getattr(row, name)) != getattr(blank, name):
            found[name] = value
    return found
