"""Skills: named instructions with declared arguments. Fill, create, update and delete them."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from agents.assignments import check_name, delete_assignable, get_assignable, save_with_version
from agents.flow_labels.text_labels import label_text
from agents.models import Skill
from agents.models.skills import SKILL_TEXTS
from bonobot.accounts.models import Deletion
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput

MAX_ARGUMENTS = 20
MAX_CHOICES = 100
MAX_ARGUMENT_LENGTH = 16_000
_MAX_TEXT_LENGTH = 500
_ARGUMENT_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SKILL_URI = re.compile(r"skill://([a-z0-9]+(?:-[a-z0-9]+)*)/SKILL\.md")
_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
LINE_SYNTAX = 'NAME[!][=DEFAULT][["A", "B"]][:DESCRIPTION]'
_LINE = re.compile(
    r"\s*(?P<name>[^!=:\[\s]+)\s*(?P<required>!)?\s*"
    r"(?:=\s*(?P<default>\"(?:[^\"\\]|\\.)*\"|[^\":\[]*?))?\s*"
    r"(?P<choices>\[.*?\])?\s*(?::\s*(?P<description>.*?))?\s*"
)
_NEEDS_QUOTES = re.compile(r"[:\[\"]|^\s|\s$")


@dataclass(frozen=True)
class TemplateArgument:
    """A declared argument; `choices` are the only allowed values, if there are any."""

    name: str
    description: str = ""
    required: bool = False
    default: str = ""
    choices: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
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
    return SkillTemplate(
        skill.name,
        text=skill.text,
        title=skill.title,
        description=skill.description,
        arguments=read_arguments(skill.arguments),
    )


def read_arguments(declarations: Iterable[Mapping[str, Any]]) -> tuple[TemplateArgument, ...]:
    """Return the arguments for declarations; raises `InvalidInput` with the field."""
    arguments: list[TemplateArgument] = []
    for index, declaration in enumerate(declarations):
        path = f"arguments[{index}]"
        if unknown_fields := sorted(set(declaration) - set(TemplateArgument.__dataclass_fields__)):
            raise InvalidInput(
                format_message("{name!r} isn't a valid argument field.", name=unknown_fields[0]),
                field=f"{path}.{unknown_fields[0]}",
                remedy=format_message(
                    "Supported fields: {fields}.",
                    fields=", ".join(TemplateArgument.__dataclass_fields__),
                ),
            )
        choices = declaration.get("choices") or ()
        arguments.append(TemplateArgument(**{**declaration, "choices": tuple(choices)}))
        _check_argument(arguments[-1], path, {argument.name for argument in arguments[:-1]})
    if len(arguments) > MAX_ARGUMENTS:
        raise InvalidInput(
            format_message("There are {count} arguments.", count=len(arguments)),
            field="arguments",
            remedy=format_message(
                "Use at most {most_arguments} arguments.", most_arguments=MAX_ARGUMENTS
            ),
        )
    return tuple(arguments)


def list_placeholders(text: str) -> tuple[str, ...]:
    """Return the names in `${…}` in a text, without duplicates, in order."""
    return tuple(dict.fromkeys(_PLACEHOLDER.findall(text)))


def check_text(text: str, arguments: Sequence[TemplateArgument]) -> None:
    """Raise `InvalidInput` for a `${name}` that no argument declares."""
    declared = {argument.name for argument in arguments}
    if undeclared := [
        placeholder for placeholder in list_placeholders(text) if placeholder not in declared
    ]:
        raise InvalidInput(
            format_message(
                "The text uses `${{{name}}}`, but no argument has this name.",
                name=undeclared[0][:100],
            ),
            code="undeclared_argument",
            field="text",
            remedy="Declare an argument with this name, or remove it from the text.",
        )


def render_skill(skill: SkillTemplate, arguments: Mapping[str, str]) -> str:
    """Return a skill's text with its arguments filled in; `${…}` in values is not expanded.

    Raises `InvalidInput` for an argument that is unknown, missing, too long or not a choice.
    """
    declared = {argument.name: argument for argument in skill.arguments}
    if unknown_names := sorted(set(arguments) - declared.keys()):
        raise InvalidInput(
            format_message(
                "The skill `{skill}` has no argument {name!r}.",
                skill=skill.name,
                name=unknown_names[0][:100],
            ),
            code="unknown_argument",
            field=f"arguments.{unknown_names[0][:100]}",
            remedy=format_message(
                "Available arguments: {declared}.", declared=", ".join(declared) or "none"
            ),
        )
    values = {
        name: _get_argument_value(skill.name, argument, arguments.get(name))
        for name, argument in declared.items()
    }
    return _PLACEHOLDER.sub(lambda hole: values.get(hole[1], hole[0]), skill.text)


def render_unfilled(skill: SkillTemplate) -> str:
    """Return a skill's text with its placeholders, followed by what they stand for."""
    if not skill.arguments:
        return skill.text
    lines = [
        f"- ${{{argument.name}}}: {_describe_argument(argument)}" for argument in skill.arguments
    ]
    return "\n".join((skill.text, "", "Take the values of these arguments from the task:", *lines))


def _describe_argument(argument: TemplateArgument) -> str:
    parts = [argument.description or "see its name"]
    if argument.choices:
        parts.append(f"one of {', '.join(argument.choices)}")
    if argument.default:
        parts.append(f"default: {argument.default}")
    return "; ".join(parts)


def find_skill_name(uri: str) -> str:
    """Return the name of the skill whose file has a URI, or ""."""
    match = _SKILL_URI.fullmatch(uri)
    return match[1] if match else ""


def build_skill_entries(skills: Iterable[SkillTemplate]) -> Iterator[dict[str, Any]]:
    """Yield the skills as entries of the skills extension of MCP (SEP-2640).

    Its names have no capital letters and underscores; skills with other names are omitted.
    """
    for skill in skills:
        uri, content = f"skill://{skill.name}/SKILL.md", _build_skill_file(skill).encode()
        if find_skill_name(uri):
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            yield {
                "uri": uri,
                "frontmatter": _build_frontmatter(skill),
                "resources": [{"uri": uri, "digest": digest, "size": len(content)}],
            }


def read_skill_file(skills: Iterable[SkillTemplate], uri: str) -> dict[str, Any] | None:
    """Return the contents of the skill with this URI, or None."""
    name = find_skill_name(uri)
    skill = next((skill for skill in skills if name and skill.name == name), None)
    if skill is None:
        return None
    text = _build_skill_file(skill)
    return {"contents": [{"uri": uri, "mimeType": "text/markdown", "text": text}]}


def _build_frontmatter(skill: SkillTemplate) -> dict[str, str]:
    return {"name": skill.name, "description": skill.description or skill.title or skill.name}


def _build_skill_file(skill: SkillTemplate) -> str:
    """Return a skill as `SKILL.md`; JSON strings are valid YAML."""
    fields = [f"{name}: {json.dumps(text)}" for name, text in _build_frontmatter(skill).items()]
    return "\n".join(("---", *fields, "---", "", render_unfilled(skill), ""))


def to_prompt(skill: SkillTemplate) -> dict[str, Any]:
    return {
        "name": skill.name,
        "title": skill.title or skill.name,
        "description": skill.description,
        "arguments": [
            {
                "name": argument.name,
                "description": argument.description,
                "required": argument.required and not argument.default,
            }
            for argument in skill.arguments
        ],
    }


def _get_argument_value(skill: str, argument: TemplateArgument, given_value: str | None) -> str:
    path = f"arguments.{argument.name}"
    value = given_value or argument.default
    if not value and argument.required:
        raise InvalidInput(
            format_message(
                "The skill `{skill}` requires the argument `{name}`.",
                skill=skill,
                name=argument.name,
            ),
            code="missing_argument",
            field=path,
            remedy=argument.description or "Provide a value.",
        )
    if len(value) > MAX_ARGUMENT_LENGTH:
        raise InvalidInput(
            format_message(
                "The argument `{name}` has {count} characters.",
                name=argument.name,
                count=len(value),
            ),
            field=path,
            remedy=format_message("Use at most {limit} characters.", limit=MAX_ARGUMENT_LENGTH),
        )
    if value and argument.choices and value not in argument.choices:
        raise InvalidInput(
            format_message(
                "{value!r} isn't a valid choice for the argument `{name}`.",
                value=value[:100],
                name=argument.name,
            ),
            field=path,
            remedy=format_message("Use one of: {values}.", values=", ".join(argument.choices)),
        )
    return value


def _check_argument(argument: TemplateArgument, path: str, other_names: set[str]) -> None:
    texts = {
        "name": argument.name,
        "description": argument.description,
        "default": argument.default,
    }
    if invalid_fields := [name for name, value in texts.items() if not isinstance(value, str)]:
        raise InvalidInput(
            format_message("The {name} of an argument must be a string.", name=invalid_fields[0]),
            field=f"{path}.{invalid_fields[0]}",
            remedy="Put the value in quotation marks.",
        )
    if not _ARGUMENT_NAME.fullmatch(argument.name):
        raise InvalidInput(
            format_message("{name!r} isn't a valid argument name.", name=argument.name[:100]),
            field=f"{path}.name",
            remedy="Use lowercase letters, digits, and `_`. Start with a letter. At most 64 "
            "characters.",
        )
    if argument.name in other_names:
        raise InvalidInput(
            format_message("The argument `{name}` is declared twice.", name=argument.name),
            field=f"{path}.name",
            remedy="Remove the duplicate.",
        )
    if not all(isinstance(choice, str) and choice for choice in argument.choices):
        raise InvalidInput(
            "Choices must be non-empty strings.",
            field=f"{path}.choices",
            remedy="Provide a list of strings.",
        )
    all_texts = (argument.description, argument.default, *argument.choices)
    if len(argument.choices) > MAX_CHOICES or any(
        len(text) > _MAX_TEXT_LENGTH for text in all_texts
    ):
        raise _build_size_error(argument, path)
    if argument.default and argument.choices and argument.default not in argument.choices:
        raise InvalidInput(
            format_message("The default of `{name}` isn't one of its choices.", name=argument.name),
            field=f"{path}.default",
            remedy="Use one of the choices.",
        )


def _build_size_error(argument: TemplateArgument, path: str) -> InvalidInput:
    return InvalidInput(
        format_message("The argument `{name}` is too large.", name=argument.name),
        field=path,
        remedy=format_message(
            "Use at most {most} choices and at most {longest} characters per string.",
            most=MAX_CHOICES,
            longest=_MAX_TEXT_LENGTH,
        ),
    )


def parse_line(line: str) -> TemplateArgument:
    """Return the argument that a line declares; raises `InvalidInput`."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise _build_line_error(line)
    default = match["default"] or ""
    try:
        return TemplateArgument(
            name=match["name"],
            description=match["description"] or "",
            required=bool(match["required"]),
            default=json.loads(default) if default.startswith('"') else default,
            choices=tuple(json.loads(match["choices"] or "[]")),
        )
    except (ValueError, RecursionError):
        raise _build_line_error(line) from None


def format_line(argument: TemplateArgument) -> str:
    """Return an argument as a line for `parse_line`."""
    needs_quotes = _NEEDS_QUOTES.search(argument.default)
    default = json.dumps(argument.default, ensure_ascii=False) if needs_quotes else argument.default
    parts = [
        argument.name,
        "!" if argument.required else "",
        f" = {default}" if argument.default else "",
    ]
    if argument.choices:
        parts.append(f" {json.dumps(list(argument.choices), ensure_ascii=False)}")
    if argument.description:
        parts.append(f": {' '.join(argument.description.split())}")
    return "".join(parts)


def parse_lines(text: str) -> list[TemplateArgument]:
    """Return the arguments in the lines of a text; raises `InvalidInput` with the line."""
    return [parse_line(line) for line in text.splitlines() if line.strip()]


def format_lines(arguments: Iterable[TemplateArgument]) -> str:
    return "\n".join(map(format_line, arguments))


def _build_line_error(line: str) -> InvalidInput:
    return InvalidInput(
        format_message("{line!r} isn't a valid argument declaration.", line=line.strip()[:100]),
        field="arguments",
        remedy=format_message("Use {form}, one per line.", form=LINE_SYNTAX),
    )


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
    skill = (
        Skill.objects.get(pk=skill.pk)
        if skill
        else Skill(organization_id=principal.organization_id)
    )
    changed_names = _apply_skill_spec(skill, spec)
    payload = skill.to_payload()
    with save_with_version(
        principal,
        skill,
        spec.agents,
        action="skill_created" if skill._state.adding else "skill_updated",
        content=payload,
        version_values={"payload": payload},
        details={"changed": changed_names},
    ) as is_new_version:
        label_text(principal, skill, is_changed=is_new_version)
    return skill


def delete_skill(principal: Principal, skill: Skill) -> Deletion | None:
    """Delete a skill with its versions; return the deletion, which can be restored."""
    return delete_assignable(principal, skill, action="skill_deleted")


def _apply_skill_spec(skill: Skill, spec: SkillSpec) -> list[str]:
    """Apply the specification; return the changed fields. Raises `InvalidInput`."""
    check_name(
        spec.name, format_message("{spec!r} isn't a valid skill name.", spec=spec.name[:100])
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
