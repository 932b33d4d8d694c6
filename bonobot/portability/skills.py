"""Skills in the configuration file: read, compared, applied and exported."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agents.models import Skill
from agents.named import agents_of
from agents.skills.keeping import SkillSpec
from agents.skills.rendering import read_arguments
from bonobot.portability.members import Members, Place

TEXTS = ("title", "description", "text")
_ARGUMENT = ("name", "description", "required", "default", "choices")


@dataclass(frozen=True, kw_only=True)
class WantedSkill:
    """A skill by its name; what isn't in `values` is not said."""

    name: str
    place: Place
    values: Mapping[str, Any]

    @property
    def spec(self) -> SkillSpec:
        """Return it as it is written by hand."""
        return SkillSpec(name=self.name, **self.values)


def read_skill(name: str, place: Place, members: Members) -> WantedSkill:
    """Return what a file says of a skill; what is wrong in it is noted."""
    values = members.texts_of(*TEXTS)
    values["enabled"] = members.flag("enabled")
    values["agents"] = members.list("agents") if members.has("agents") else None
    arguments = members.items("arguments")
    if arguments is not None:
        values["arguments"] = [_argument(members, node.plain()) for node in arguments]
    members.refuse_others((*TEXTS, "enabled", "agents", "arguments"))
    said = {name: value for name, value in values.items() if value is not None}
    return WantedSkill(name=name, place=place, values=said)


def _argument(members: Members, said: Any) -> dict[str, Any]:
    if isinstance(said, dict):
        return said
    members.refuse("arguments", "bad_value", f"Each has: {', '.join(_ARGUMENT)}.")
    return {"name": "broken"}


def changed_fields(row: Skill, wanted: WantedSkill) -> list[str]:
    """Return the members by which a stored skill is another one; raises `Invalid`."""
    said = dict(wanted.values)
    if "arguments" in said:
        said["arguments"] = [one.as_dict() for one in read_arguments(said["arguments"])]
    stored: dict[str, Any] = {name: getattr(row, name) for name in (*TEXTS, "enabled", "arguments")}
    stored["agents"] = agents_of(row)
    said["agents"] = sorted(said["agents"]) if "agents" in said else stored["agents"]
    return [name for name, value in said.items() if stored[name] != value]


def exported(rows: Iterable[Skill]) -> dict[str, Any]:
    """Return skills as the file has them."""
    return {row.name: _exported(row) for row in rows}


def _exported(row: Skill) -> dict[str, Any]:
    found = {name: getattr(row, name) for name in TEXTS if getattr(row, name)}
    if row.arguments:
        found["arguments"] = [
            {name: value for name, value in one.items() if value} for one in row.arguments
        ]
    if not row.enabled:
        found["enabled"] = False
    return found | {"agents": agents_of(row)}
