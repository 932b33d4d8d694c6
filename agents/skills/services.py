"""Create, update, assign and delete skills."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.assignments import (
    delete_assignable,
    get_agents_by_slug,
    get_assignable,
    record_assignment_change,
    save_assignable,
    set_agents,
)
from agents.flow_labels.text_labels import label_text
from agents.models import Skill, SkillVersion
from agents.models.skills import SKILL_TEXTS
from agents.skills.templates import check_text, read_arguments
from bonobot.accounts.models import Deletion
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.canonical_json import compute_json_digest

_NAME = re.compile(r"[-a-zA-Z0-9_]{1,64}")


@dataclass(frozen=True, kw_only=True)
class SkillSpec:
    """The values of a skill; None keeps the current or default value.

    `agents` are the slugs of the agents that have it.
    """

    name: str
    title: str | None = None
    description: str | None = None
    text: str | None = None
    arguments: Sequence[Mapping[str, Any]] | None = None
    enabled: bool | None = None
    agents: Sequence[str] | None = None


def get_skill(principal: Principal, name: str) -> Skill:
    """Return the visible skill with this ID or name; raises `NotFound`."""
    skill: Skill = get_assignable(Skill.objects, principal, name)
    return skill


def save_skill(principal: Principal, spec: SkillSpec, skill: Skill | None = None) -> Skill:
    """Create or update a skill; raises `InvalidInput` with the field, `Conflict` (`name_taken`).

    A change of its content creates a version; earlier ones are kept.
    """
    principal.require(Action.MANAGE_WORKFLOWS)
    existing_skill = skill
    skill = (
        Skill.objects.get(pk=existing_skill.pk)
        if existing_skill
        else Skill(organization_id=principal.organization_id)
    )
    changed_names = _apply_skill_spec(skill, spec)
    agents = None if spec.agents is None else get_agents_by_slug(principal, spec.agents, "agents")
    digest = compute_json_digest(skill.to_payload())
    is_new = existing_skill is None or digest != skill.digest
    if is_new:
        skill.version, skill.digest = (skill.version + 1 if existing_skill else 1), digest
    details: dict[str, Any] = {
        "changed": changed_names,
        "version": skill.version,
        "digest": skill.digest,
    }
    if agents is not None:
        details["agents"] = sorted(agent.slug for agent in agents)
    with record_assignment_change(
        principal, skill, "skill_updated" if existing_skill else "skill_created", details
    ):
        save_assignable(skill)
        if is_new:
            SkillVersion.objects.create(
                organization_id=skill.organization_id,
                skill=skill,
                number=skill.version,
                digest=skill.digest,
                payload=skill.to_payload(),
                created_by=principal.label,
            )
        if agents is not None:
            set_agents(skill, agents)
        label_text(principal, skill, is_changed=is_new)
    return skill


def delete_skill(principal: Principal, skill: Skill) -> Deletion | None:
    """Delete a skill with its versions; return the deletion, which can be restored."""
    return delete_assignable(principal, skill, action="skill_deleted")


def _apply_skill_spec(skill: Skill, spec: SkillSpec) -> list[str]:
    """Apply the specification; return the changed fields. Raises `InvalidInput`."""
    if not _NAME.fullmatch(spec.name):
        raise InvalidInput(
            format_message("{spec!r} isn't a valid skill name.", spec=spec.name[:100]),
            field="name",
            remedy="Use at most 64 letters, digits, `-`, and `_`.",
        )
    values: dict[str, Any] = {
        name: getattr(spec, name)
        for name in ("name", *SKILL_TEXTS, "enabled")
        if getattr(spec, name) is not None
    }
    for name, max_length in SKILL_TEXTS.items():
        if len(values.get(name, "")) > max_length:
            raise InvalidInput(
                format_message("The field has {count} characters.", count=len(values[name])),
                field=name,
                remedy=format_message("Use at most {limit} characters.", limit=max_length),
            )
    if spec.arguments is not None:
        values["arguments"] = [argument.as_dict() for argument in read_arguments(spec.arguments)]
    changed_names = [name for name, value in values.items() if getattr(skill, name) != value]
    for name in changed_names:
        setattr(skill, name, values[name])
    if not skill.text.strip():
        raise InvalidInput(
            "The skill has no instructions.", field="text", remedy="Enter the instructions."
        )
    check_text(skill.text, read_arguments(skill.arguments))
    return changed_names
