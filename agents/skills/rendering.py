"""What a skill says, and what becomes of it with arguments filled in. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say

MOST_ARGUMENTS = 20
MOST_CHOICES = 100
LONGEST_ARGUMENT = 16_000
_LONGEST_WORDS = 500
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_HOLE = re.compile(r"\$\{([^}]*)\}")


@dataclass(frozen=True)
class Argument:
    """A declared argument; with `choices` nothing else is taken, `default` stands where none is."""

    name: str
    description: str = ""
    required: bool = False
    default: str = ""
    choices: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as it is stored and shown."""
        return asdict(self) | {"choices": list(self.choices)}


@dataclass(frozen=True)
class SkillText:
    """What a skill says, with the arguments that stand in it as `${name}`."""

    name: str
    text: str
    title: str = ""
    description: str = ""
    arguments: tuple[Argument, ...] = ()


class Said(Protocol):
    """A stored skill."""

    name: str
    text: str
    title: str
    description: str
    arguments: Any


def text_of(skill: Said) -> SkillText:
    """Return what a stored skill says."""
    return SkillText(
        skill.name, skill.text, skill.title, skill.description, read_arguments(skill.arguments)
    )


def read_arguments(said: Iterable[Mapping[str, Any]]) -> tuple[Argument, ...]:
    """Return stored or written declarations; raises `Invalid` naming the one that is wrong."""
    found: list[Argument] = []
    for index, one in enumerate(said):
        where = f"arguments[{index}]"
        if strange := sorted(set(one) - set(Argument.__dataclass_fields__)):
            raise Invalid(
                say("An argument has no member {strange!r}.", strange=strange[0]),
                field=f"{where}.{strange[0]}",
                remedy=say(
                    "Use: {dataclass_fields}.",
                    dataclass_fields=", ".join(Argument.__dataclass_fields__),
                ),
            )
        choices = one.get("choices") or ()
        found.append(Argument(**{**one, "choices": tuple(choices)}))
        _check_argument(found[-1], where, {other.name for other in found[:-1]})
    if len(found) > MOST_ARGUMENTS:
        raise Invalid(
            say("There are {count} arguments.", count=len(found)),
            field="arguments",
            remedy=say("A skill has at most {most_arguments}.", most_arguments=MOST_ARGUMENTS),
        )
    return tuple(found)


def holes(text: str) -> tuple[str, ...]:
    """Return what stands in `${…}` in a text, each once, in order."""
    return tuple(dict.fromkeys(_HOLE.findall(text)))


def check_text(text: str, arguments: Sequence[Argument]) -> None:
    """Raise `Invalid` for a `${name}` that no argument declares."""
    declared = {one.name for one in arguments}
    if strange := [hole for hole in holes(text) if hole not in declared]:
        raise Invalid(
            say(
                "The text asks for `${{{strange}}}`, which no argument declares.",
                strange=strange[0][:100],
            ),
            code="undeclared_argument",
            field="text",
            remedy="Declare an argument of this name, or take it out of the text.",
        )


def render(skill: SkillText, given: Mapping[str, str]) -> str:
    """Return a skill's text with its arguments filled in, once: what they say stays text.

    Raises `Invalid` naming the argument: unknown, missing, too long, or none of its choices.
    """
    declared = {one.name: one for one in skill.arguments}
    if strange := sorted(set(given) - declared.keys()):
        raise Invalid(
            say(
                "The skill `{skill}` has no argument {strange!r}.",
                skill=skill.name,
                strange=strange[0][:100],
            ),
            code="unknown_argument",
            field=f"arguments.{strange[0][:100]}",
            remedy=say("It has: {declared}.", declared=", ".join(declared) or "none"),
        )
    values = {name: _value(skill.name, one, given.get(name)) for name, one in declared.items()}
    return _HOLE.sub(lambda hole: values.get(hole[1], hole[0]), skill.text)


def as_prompt(skill: SkillText) -> dict[str, Any]:
    """Return a skill as MCP declares a prompt."""
    return {
        "name": skill.name,
        "title": skill.title or skill.name,
        "description": skill.description,
        "arguments": [
            {
                "name": one.name,
                "description": one.description,
                "required": one.required and not one.default,
            }
            for one in skill.arguments
        ],
    }


def completions(skill: SkillText, argument: str, begun: str) -> list[str]:
    """Return the choices of an argument that begin as written, whatever their case."""
    found = next((one.choices for one in skill.arguments if one.name == argument), ())
    return [choice for choice in found if choice.casefold().startswith(begun.casefold())]


def _value(skill: str, one: Argument, said: str | None) -> str:
    where = f"arguments.{one.name}"
    value = said or one.default
    if not value and one.required:
        raise Invalid(
            say("The skill `{skill}` needs the argument `{name}`.", skill=skill, name=one.name),
            code="missing_argument",
            field=where,
            remedy=one.description or "Give it a value.",
        )
    if len(value) > LONGEST_ARGUMENT:
        raise Invalid(
            say("The argument `{name}` has {count} characters.", name=one.name, count=len(value)),
            field=where,
            remedy=say("At most {longest_argument} are taken.", longest_argument=LONGEST_ARGUMENT),
        )
    if value and one.choices and value not in one.choices:
        raise Invalid(
            say(
                "{value!r} is no choice for the argument `{name}`.",
                value=value[:100],
                name=one.name,
            ),
            field=where,
            remedy=say("Choose one of: {choices}.", choices=", ".join(one.choices)),
        )
    return value


def _check_argument(one: Argument, where: str, others: set[str]) -> None:
    texts = {"name": one.name, "description": one.description, "default": one.default}
    if wrong := [name for name, value in texts.items() if not isinstance(value, str)]:
        raise Invalid(
            say("The {wrong} of an argument is a text.", wrong=wrong[0]),
            field=f"{where}.{wrong[0]}",
            remedy="Quote it.",
        )
    if not _NAME.fullmatch(one.name):
        raise Invalid(
            say("{name!r} is no name for an argument.", name=one.name[:100]),
            field=f"{where}.name",
            remedy="Use small letters, digits and `_`, beginning with a letter; at most 64.",
        )
    if one.name in others:
        raise Invalid(
            say("The argument `{name}` is there twice.", name=one.name),
            field=f"{where}.name",
            remedy="Keep one of them.",
        )
    if not all(isinstance(choice, str) and choice for choice in one.choices):
        raise Invalid(
            "Choices are texts.", field=f"{where}.choices", remedy="Write a list of texts."
        )
    words = (one.description, one.default, *one.choices)
    if len(one.choices) > MOST_CHOICES or any(len(text) > _LONGEST_WORDS for text in words):
        raise _too_much(one, where)
    if one.default and one.choices and one.default not in one.choices:
        raise Invalid(
            say("The default of `{name}` is none of its choices.", name=one.name),
            field=f"{where}.default",
            remedy="Choose one of them.",
        )


def _too_much(one: Argument, where: str) -> Invalid:
    return Invalid(
        say("The argument `{name}` says too much.", name=one.name),
        field=where,
        remedy=say(
            "At most {most} choices; texts of {longest} characters.",
            most=MOST_CHOICES,
            longest=_LONGEST_WORDS,
        ),
    )
