"""`list_skills` and `read_skill`: the instructions that were given to the agent, when needed."""

from typing import Any

from agents.builtin_tools.tool import BuiltinTool, Context
from agents.skills.rendering import Argument, as_prompt
from bonobot.lib.problems import NotFound
from bonobot.lib.sayings import say
from mcp_servers.labels import Label


async def _list(context: Context, arguments: dict[str, Any]) -> str:
    """Return the skills, with their arguments, one on each line."""
    lines = []
    for skill in context.snapshot.skills.values():
        prompt = as_prompt(skill)
        taken = ", ".join(
            f"{one['name']}{'' if one['required'] else '?'}" for one in prompt["arguments"]
        )
        lines.append(f"{skill.name}({taken}): {skill.description or skill.title}".rstrip(": "))
    return "\n".join(lines)


async def _read(context: Context, arguments: dict[str, Any]) -> str:
    """Return a skill as it was written.

    What stands for its arguments in the task is the model's to say: filled in here, a stranger's
    text that the model quotes would come back as our own words.
    """
    skill = context.snapshot.skills.get(arguments["name"])
    if skill is None:
        raise NotFound(
            say("There is no skill {name!r}.", name=arguments["name"][:100]),
            code="unknown_skill",
            field="name",
            remedy="Take the name from `list_skills`.",
        )
    if not skill.arguments:
        return skill.text
    lines = [f"- ${{{one.name}}}: {_told(one)}" for one in skill.arguments]
    return "\n".join((skill.text, "", "What stands for these, take from the task:", *lines))


def _told(one: Argument) -> str:
    words = [one.description or "as the name says"]
    if one.choices:
        words.append(f"one of {', '.join(one.choices)}")
    if one.default:
        words.append(f"{one.default} if nothing is said")
    return "; ".join(words)


LIST_SKILLS = BuiltinTool(
    name="list_skills",
    description=say("List the skills: instructions for tasks, with the arguments that each takes."),
    input_schema={"type": "object", "properties": {}, "additionalProperties": False},
    run=_list,
    of_skills=True,
    instructs=True,
    labels=(Label.REPEATABLE,),
)

READ_SKILL = BuiltinTool(
    name="read_skill",
    description=say("Read the instructions of a skill before doing what it is for."),
    input_schema={
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 64},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    run=_read,
    of_skills=True,
    instructs=True,
    labels=(Label.REPEATABLE,),
)
