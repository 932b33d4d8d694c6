"""Fill the parameters of a preset (pure).

Values can't change the command: a value can't become an option, a second line, or anything but text
in its place.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import re2

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text.placeholders import list_placeholders
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.import_export.entries import SECRET_FIELDS, Placement, SecretValue

MAX_VALUE_CHARACTERS = 4096
_PLACEMENTS: dict[str, Placement] = {
    member: placement for placement, member in SECRET_FIELDS.items()
}
_SECRET_AUTH_FIELDS = frozenset(("token", "key", "client_secret", "private_key"))
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class PresetTemplate(Protocol):
    """The parts of a preset that parameters use, in a row or a catalog entry."""

    @property
    def endpoint_config(self) -> Mapping[str, Any]:
        """The server's endpoint, with `${NAME}` for parameters."""

    @property
    def auth_config(self) -> Mapping[str, Any]:
        """The sign-in, with `${NAME}` for parameters."""

    @property
    def parameters(self) -> list[dict[str, Any]]:
        """The parameters: name, label, secret, required, default, help."""


@dataclass(frozen=True, slots=True)
class FilledPreset:
    """A filled preset: public configuration, secrets, and problems with the values."""

    endpoint_config: dict[str, Any] = field(repr=False)
    auth_config: dict[str, Any] = field(repr=False)
    secrets: tuple[SecretValue, ...]
    problems: tuple[Problem, ...]


def fill_parameters(preset: PresetTemplate, values: Mapping[str, str]) -> FilledPreset:
    """Return the configuration filled with `values` by parameter name, case-insensitive.

    Fields with empty optional parameters are omitted. Problems (`missing_value`, `bad_value`,
    `unknown_parameter`) have the parameter's name as their field.
    """
    values_by_name = {name.upper(): value for name, value in values.items()}
    parameters_by_name = {parameter["name"].upper(): parameter for parameter in preset.parameters}
    problems = [*_validate_parameter_names(values_by_name, parameters_by_name)]
    texts: dict[str, str] = {}
    for name, parameter in parameters_by_name.items():
        value = values_by_name.get(name) or str(parameter.get("default") or "")
        if problem := _validate_value(parameter, value):
            problems.append(problem)
        texts[parameter["name"]] = str(value)
    return FilledPreset(*_place_parameters(preset, texts), problems=tuple(problems))


def _validate_parameter_names(
    values: Mapping[str, str], parameters: Mapping[str, Any]
) -> Iterator[Problem]:
    for name in values.keys() - parameters.keys():
        safe_name = make_visible(name, 64)
        name_list = ", ".join(f"`{known_name}`" for known_name in parameters) or "none"
        yield InvalidInput(
            format_message("The preset has no parameter `{shown}`.", shown=safe_name),
            code="unknown_parameter",
            field=safe_name,
            remedy=format_message("The preset's parameters: {listed}.", listed=name_list),
        )


def _validate_value(parameter: Mapping[str, Any], value: Any) -> Problem | None:
    name, label = parameter["name"], parameter.get("label") or parameter["name"]
    if value == "":
        if not parameter.get("required", True):
            return None
        help_text = parameter.get("help") or "Fill it in."
        return InvalidInput(
            format_message("{parameter} is missing.", parameter=label),
            code="missing_value",
            field=name,
            remedy=help_text,
        )
    explanation = _explain_invalid_value(parameter, label, value)
    if not explanation:
        return None
    return InvalidInput(
        explanation,
        code="bad_value",
        field=name,
        remedy=parameter.get("help") or "Enter a valid value.",
    )


def _explain_invalid_value(parameter: Mapping[str, Any], label: str, value: Any) -> str:
    """Return why a value is invalid, or ""."""
    if not isinstance(value, str):
        return format_message("{parameter} must be a string.", parameter=label)
    if len(value) > MAX_VALUE_CHARACTERS or _CONTROL.search(value):
        return format_message(
            "{parameter} must be a single line of at most {n} characters.",
            parameter=label,
            n=MAX_VALUE_CHARACTERS,
        )
    if value.startswith("-") and not parameter.get("secret"):
        return format_message(
            "{parameter} must not start with `-`, because programs interpret it as an option.",
            parameter=label,
        )
    pattern = parameter.get("pattern")
    if pattern and re2.fullmatch(pattern, value) is None:
        return format_message("{parameter} has an invalid format.", parameter=label)
    return ""


def _place_parameters(
    preset: PresetTemplate, texts: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any], tuple[SecretValue, ...]]:
    endpoint: dict[str, Any] = {}
    secrets: list[SecretValue] = []
    for field_name, value in preset.endpoint_config.items():
        if (placement := _PLACEMENTS.get(field_name)) is not None:
            filled_pairs = ((name, _fill_text(template, texts)) for name, template in value.items())
            secrets += [
                SecretValue(placement, secret_name, text)
                for secret_name, text in filled_pairs
                if text is not None
            ]
        elif isinstance(value, list):
            filled_items = (_fill_text(item, texts) for item in value)
            endpoint[field_name] = [text for text in filled_items if text is not None]
        elif (text := _fill_text(str(value), texts)) is not None:
            endpoint[field_name] = text
    auth: dict[str, Any] = {}
    for field_name, template in preset.auth_config.items():
        text = _fill_text(str(template), texts)
        if text is None:
            continue
        if field_name in _SECRET_AUTH_FIELDS:
            secrets.append(SecretValue("auth", field_name, text))
        else:
            auth[field_name] = text
    return endpoint, auth, tuple(secrets)


def _fill_text(template: str, texts: Mapping[str, str]) -> str | None:
    """Return a filled template, or None if a parameter in it is empty."""
    values = {
        placeholder.text: texts.get(placeholder.name, "")
        for placeholder in list_placeholders(template)
    }
    if not all(values.values()):
        return None
    return re.sub(
        r"\$\{[A-Za-z0-9_]+\}", lambda match: values.get(match.group(), match.group()), template
    )
