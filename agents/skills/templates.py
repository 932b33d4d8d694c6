"""Parse skill arguments and render skill texts (pure).

An argument can be written as one line. After the name, each part is optional: `!` for required, the
default (quoted if it contains `:`, `[` or `"`), the choices as a JSON list, the description.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput

MOST_ARGUMENTS = 20
MOST_CHOICES = 100
LONGEST_ARGUMENT = 16_000
_LONGEST_WORDS = 500
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_HOLE = re.compile(r"\$\{([^}]*)\}")


@dataclass(frozen=True)
class TemplateArgument:
    """A declared argument; `choices` are the only allowed values, if there are any."""

    name: str
    description: str = ""
    required: bool = False
    default: str = ""
    choices: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the stored form."""
        return asdict(self) | {"choices": list(self.choices)}


@dataclass(frozen=True)
class SkillTemplate:
    """The content of a skill; its text references arguments as `${name}`."""

    name: str
    text: str
    title: str = ""
    description: str = ""
    arguments: tuple[TemplateArgument, ...] = ()


class StoredSkill(Protocol):
    """A stored skill."""

    name: str
    text: str
    title: str
    description: str
    arguments: Any


def build_template(skill: StoredSkill) -> SkillTemplate:
    """Return the template of a stored skill."""
    return SkillTemplate(
        skill.name, skill.text, skill.title, skill.description, read_arguments(skill.arguments)
    )


def read_arguments(said: Iterable[Mapping[str, Any]]) -> tuple[TemplateArgument, ...]:
    """Return the arguments for declarations; raises `InvalidInput` with the field."""
    found: list[TemplateArgument] = []
    for index, one in enumerate(said):
        where = f"arguments[{index}]"
        if strange := sorted(set(one) - set(TemplateArgument.__dataclass_fields__)):
            raise InvalidInput(
                format_message("An argument has no member {strange!r}.", strange=strange[0]),
                field=f"{where}.{strange[0]}",
                remedy=format_message(
                    "Use: {dataclass_fields}.",
                    dataclass_fields=", ".join(TemplateArgument.__dataclass_fields__),
                ),
            )
        choices = one.get("choices") or ()
        found.append(TemplateArgument(**{**one, "choices": tuple(choices)}))
        _check_argument(found[-1], where, {other.name for other in found[:-1]})
    if len(found) > MOST_ARGUMENTS:
        raise InvalidInput(
            format_message("There are {count} arguments.", count=len(found)),
            field="arguments",
            remedy=format_message(
                "A skill has at most {most_arguments}.", most_arguments=MOST_ARGUMENTS
            ),
        )
    return tuple(found)


def list_placeholders(text: str) -> tuple[str, ...]:
    """Return the names in `${…}` in a text, without duplicates, in order."""
    return tuple(dict.fromkeys(_HOLE.findall(text)))


def check_text(text: str, arguments: Sequence[TemplateArgument]) -> None:
    """Raise `InvalidInput` for a `${name}` that no argument declares."""
    declared = {one.name for one in arguments}
    if strange := [hole for hole in list_placeholders(text) if hole not in declared]:
        raise InvalidInput(
            format_message(
                "The text asks for `${{{strange}}}`, which no argument declares.",
                strange=strange[0][:100],
            ),
            code="undeclared_argument",
            field="text",
            remedy="Declare an argument of this name, or take it out of the text.",
        )


def render(skill: SkillTemplate, given: Mapping[str, str]) -> str:
    """Return a skill's text with its arguments filled in; `${…}` in values is not expanded.

    Raises `InvalidInput` for an argument that is unknown, missing, too long or not a choice.
    """
    declared = {one.name: one for one in skill.arguments}
    if strange := sorted(set(given) - declared.keys()):
        raise InvalidInput(
            format_message(
                "The skill `{skill}` has no argument {strange!r}.",
                skill=skill.name,
                strange=strange[0][:100],
            ),
            code="unknown_argument",
            field=f"arguments.{strange[0][:100]}",
            remedy=format_message("It has: {declared}.", declared=", ".join(declared) or "none"),
        )
    values = {name: _value(skill.name, one, given.get(name)) for name, one in declared.items()}
    return _HOLE.sub(lambda hole: values.get(hole[1], hole[0]), skill.text)


def as_prompt(skill: SkillTemplate) -> dict[str, Any]:
    """Return a skill as an MCP prompt."""
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


def complete_argument(skill: SkillTemplate, argument: str, begun: str) -> list[str]:
    """Return the choices of an argument that start with `prefix`, ignoring case."""
    found = next((one.choices for one in skill.arguments if one.name == argument), ())
    return [choice for choice in found if choice.casefold().startswith(begun.casefold())]


def _value(skill: str, one: TemplateArgument, said: str | None) -> str:
    where = f"arguments.{one.name}"
    value = said or one.default
    if not value and one.required:
        raise InvalidInput(
            format_message(
                "The skill `{skill}` needs the argument `{name}`.", skill=skill, name=one.name
            ),
            code="missing_argument",
            field=where,
            remedy=one.description or "Give it a value.",
        )
    if len(value) > LONGEST_ARGUMENT:
        raise InvalidInput(
            format_message(
                "The argument `{name}` has {count} characters.", name=one.name, count=len(value)
            ),
            field=where,
            remedy=format_message(
                "At most {longest_argument} are taken.", longest_argument=LONGEST_ARGUMENT
            ),
        )
    if value and one.choices and value not in one.choices:
        raise InvalidInput(
            format_message(
                "{value!r} is no choice for the argument `{name}`.",
                value=value[:100],
                name=one.name,
            ),
            field=where,
            remedy=format_message("Choose one of: {choices}.", choices=", ".join(one.choices)),
        )
    return value


def _check_argument(one: TemplateArgument, where: str, others: set[str]) -> None:
    texts = {"name": one.name, "description": one.description, "default": one.default}
    if wrong := [name for name, value in texts.items() if not isinstance(value, str)]:
        raise InvalidInput(
            format_message("The {wrong} of an argument is a text.", wrong=wrong[0]),
            field=f"{where}.{wrong[0]}",
            remedy="Quote it.",
        )
    if not _NAME.fullmatch(one.name):
        raise InvalidInput(
            format_message("{name!r} is no name for an argument.", name=one.name[:100]),
            field=f"{where}.name",
            remedy="Use small letters, digits and `_`, beginning with a letter; at most 64.",
        )
    if one.name in others:
        raise InvalidInput(
            format_message("The argument `{name}` is there twice.", name=one.name),
            field=f"{where}.name",
            remedy="Keep one of them.",
        )
    if not all(isinstance(choice, str) and choice for choice in one.choices):
        raise InvalidInput(
            "Choices are texts.", field=f"{where}.choices", remedy="Write a list of texts."
        )
    words = (one.description, one.default, *one.choices)
    if len(one.choices) > MOST_CHOICES or any(len(text) > _LONGEST_WORDS for text in words):
        raise _build_size_error(one, where)
    if one.default and one.choices and one.default not in one.choices:
        raise InvalidInput(
            format_message("The default of `{name}` is none of its choices.", name=one.name),
            field=f"{where}.default",
            remedy="Choose one of them.",
        )


def _build_size_error(one: TemplateArgument, where: str) -> InvalidInput:
    return InvalidInput(
        format_message("The argument `{name}` says too much.", name=one.name),
        field=where,
        remedy=format_message(
            "At most {most} choices; texts of {longest} characters.",
            most=MOST_CHOICES,
            longest=_LONGEST_WORDS,
        ),
    )


FORM = 'NAME[!][=DEFAULT][["A", "B"]][:DESCRIPTION]'
_LINE = re.compile(
    r"\s*(?P<name>[^!=:\[\s]+)\s*(?P<required>!)?\s*"
    r"(?:=\s*(?P<default>\"(?:[^\"\\]|\\.)*\"|[^\":\[]*?))?\s*"
    r"(?P<choices>\[.*?\])?\s*(?::\s*(?P<description>.*?))?\s*"
)
_SPECIAL = re.compile(r"[:\[\"]|^\s|\s$")


def read_line(line: str) -> TemplateArgument:
    """Return the argument that a line declares; raises `InvalidInput`."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise _build_line_error(line)
    default = found["default"] or ""
    try:
        return TemplateArgument(
            name=found["name"],
            description=found["description"] or "",
            required=bool(found["required"]),
            default=json.loads(default) if default.startswith('"') else default,
            choices=tuple(json.loads(found["choices"] or "[]")),
        )
    except ValueError:
        raise _build_line_error(line) from None


def write_line(one: TemplateArgument) -> str:
    """Return an argument as a line for `parse_line`."""
    quoted = _SPECIAL.search(one.default)
    default = json.dumps(one.default, ensure_ascii=False) if quoted else one.default
    parts = [one.name, "!" if one.required else "", f" = {default}" if one.default else ""]
    if one.choices:
        parts.append(f" {json.dumps(list(one.choices), ensure_ascii=False)}")
    if one.description:
        parts.append(f": {' '.join(one.description.split())}")
    return "".join(parts)


def read_lines(text: str) -> list[TemplateArgument]:
    """Return the arguments in the lines of a text; raises `InvalidInput` with the line."""
    return [read_line(line) for line in text.splitlines() if line.strip()]


def write_lines(arguments: Iterable[TemplateArgument]) -> str:
    """Return arguments as lines."""
    return "\n".join(map(write_line, arguments))


def _build_line_error(line: str) -> InvalidInput:
    return InvalidInput(
        format_message("{line!r} declares no argument.", line=line.strip()[:100]),
        field="arguments",
        remedy=format_message("Write {form}, one in a line.", form=FORM),
    )
