"""Prompts: the skills that a principal may use, with their arguments filled in."""

from collections.abc import Mapping
from typing import Any

from agents.models import Skill
from agents.skills.rendering import SkillText, as_prompt, render, text_of
from bonobot.gateway.shelves import Declaration
from bonobot.lib.problems import Invalid
from bonobot.tenancy.principals import Principal


def prompts(principal: Principal) -> tuple[Declaration, ...]:
    """Return the skills as MCP declares prompts (a query)."""
    skills = Skill.objects.usable_by(principal).order_by("name")
    return tuple(as_prompt(text_of(skill)) for skill in skills)


def skill_named(principal: Principal, name: str) -> SkillText | None:
    """Return the skill of this name, if it may be used (a query)."""
    found = Skill.objects.usable_by(principal).filter(name=name).first()
    return text_of(found) if found else None


def filled(skill: SkillText, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a skill as the message that a person would send; raises `Invalid`."""
    if wrong := [name for name, value in arguments.items() if not isinstance(value, str)]:
        raise Invalid(
            f"The argument {wrong[0][:100]!r} is no text.",
            field=f"arguments.{wrong[0][:100]}",
            remedy="Arguments of prompts are texts.",
        )
    content = {"type": "text", "text": render(skill, arguments)}
    return {
        "description": skill.description,
        "messages": [{"role": "user", "content": content}],
    }
