"""Check the configuration and parameters of presets.

Secrets are filled in by the user of a preset and are never part of it. They are only allowed where
values are encrypted: headers, environment, credentials.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import re2

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.masking import MASK
from bonobot.core.text.placeholders import list_placeholders
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.auth_config import AUTH_FIELDS
from mcp_servers.server_config import HTTP_FIELDS, STDIO_FIELDS
from mcp_servers.stdio_validation import check_no_dangerous_variables

PARAMETER_KINDS = ("", "folder", "file", "url")
MAX_PARAMETERS = 50
_PARAMETER_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_PARAMETER_FIELDS = {
    "name": str,
    "label": str,
    "secret": bool,
    "required": bool,
    "default": str,
    "help": str,
    "kind": str,
    "pattern": str,
}
# Names of headers and variables whose values are credentials.
_SECRET_NAME = re.compile(r"(?i)authori[sz]ation|token|secret|password|passwd|api[-_]?key|cookie")


def check_preset_columns(columns: dict[str, Any]) -> None:
    """Raise `InvalidInput` for the first invalid field; normalize the parameters in place.

    Codes: `invalid`, `unknown_field`, `unknown_parameter` (used, not declared),
    `unused_parameter`, `secret_in_preset` (a value that must be filled in by each user),
    `secret_in_public` (a secret where values are not encrypted).
    """
    columns["parameters"] = _parse_parameters(columns["parameters"])
    parameters = {parameter["name"]: parameter for parameter in columns["parameters"]}
    _check_endpoint_config(columns["transport_type"], columns["endpoint_config"])
    _check_auth_config(columns["transport_type"], columns["auth_type"], columns["auth_config"])
    used_names: set[str] = set()
    for path, text, is_encrypted in _iterate_texts(columns):
        used_names |= _collect_references(path, text, is_encrypted, parameters)
    for name in parameters.keys() - used_names:
        raise _build_error(
            "parameters",
            f"The parameter `{name}` isn't used.",
            format_message(
                "Add ${{{name}}} where its value belongs, or delete the parameter.", name=name
            ),
            "unused_parameter",
        )


def _collect_references(
    path: str, text: str, is_encrypted: bool, parameters: Mapping[str, dict[str, Any]]
) -> set[str]:
    """Return the parameters in a text; raises `InvalidInput` if one is not allowed there."""
    names = {placeholder.name for placeholder in list_placeholders(text)}
    for name in sorted(names - parameters.keys()):
        raise _build_error(
            path,
            f"`${{{name}}}` isn't a declared parameter.",
            "Declare it, or enter the value itself.",
            "unknown_parameter",
        )
    has_secret = any(parameters[name]["secret"] for name in names)
    if has_secret and not is_encrypted:
        raise _build_error(
            path,
            "A secret can be used only in headers, environment variables, and credentials.",
            "Move it there. In any other place, everyone who can view the server could read it.",
            "secret_in_public",
        )
    if is_encrypted and not has_secret and _SECRET_NAME.search(path.rpartition(".")[2]):
        raise _build_error(
            path,
            "A preset can't contain credentials.",
            "Replace it with a parameter, such as ${TOKEN}, and mark the parameter as secret.",
            "secret_in_preset",
        )
    return names


def _parse_parameters(raw: Any) -> list[dict[str, Any]]:
    if not isinstance(raw, list) or len(raw) > MAX_PARAMETERS:
        raise _build_error(
            "parameters", f"Parameters must be a list of at most {MAX_PARAMETERS} objects.", ""
        )
    parameters = [_parse_parameter(item, f"parameters.{index}") for index, item in enumerate(raw)]
    names = [item["name"] for item in parameters]
    if duplicate := next((name for name in names if names.count(name) > 1), ""):
        raise _build_error(
            "parameters",
            f"The parameter `{duplicate}` is declared twice.",
            "Use each name only once.",
        )
    return parameters


def _parse_parameter(raw: Any, path: str) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise _build_error(path, "A parameter must be an object.", "Enter a name and a label.")
    if unknown_fields := sorted(set(raw) - set(_PARAMETER_FIELDS)):
        raise _build_error(
            f"{path}.{unknown_fields[0]}",
            f"Unknown parameter field {unknown_fields[0]!r}.",
            format_message("Supported fields: {fields}.", fields=", ".join(_PARAMETER_FIELDS)),
            "unknown_field",
        )
    for field_name, field_type in _PARAMETER_FIELDS.items():
        if field_name in raw and not isinstance(raw[field_name], field_type):
            raise _build_error(
                f"{path}.{field_name}", f"`{field_name}` must be {field_type.__name__}.", ""
            )
    name = str(raw.get("name", ""))
    if not _PARAMETER_NAME.fullmatch(name):
        raise _build_error(
            f"{path}.name",
            f"`{make_visible(name, 64)}` isn't a valid parameter name.",
            "Use uppercase letters, as in API_TOKEN.",
        )
    secret, default = bool(raw.get("secret", False)), str(raw.get("default", ""))
    if secret and default:
        raise _build_error(
            f"{path}.default", "A secret can't have a default.", "Omit it.", "secret_in_preset"
        )
    if raw.get("kind", "") not in PARAMETER_KINDS:
        raise _build_error(
            f"{path}.kind",
            "Unknown parameter type.",
            "Use folder, file, or url, or leave it empty.",
        )
    _check_pattern(str(raw.get("pattern", "")), path)
    texts = {
        "label": str(raw.get("label") or name)[:60],
        "help": str(raw.get("help", ""))[:200],
    }
    optional_fields = {
        field_name: raw[field_name] for field_name in ("kind", "pattern") if raw.get(field_name)
    }
    required = bool(raw.get("required", True))
    return (
        {"name": name, "secret": secret, "required": required, "default": default}
        | texts
        | optional_fields
    )


def _check_pattern(pattern: str, path: str) -> None:
    try:
        re2.compile(pattern)
    except re2.error:
        raise _build_error(
            f"{path}.pattern", "The pattern isn't a valid regular expression.", "Use RE2 syntax."
        ) from None


def _check_endpoint_config(transport: str, config: Any) -> None:
    allowed_fields = {"stdio": STDIO_FIELDS, "http": HTTP_FIELDS}.get(transport)
    if allowed_fields is None:
        raise _build_error(
            "transport_type", f"Unknown transport {transport!r}.", "Use stdio or http."
        )
    if not isinstance(config, Mapping):
        raise _build_error("endpoint_config", "Must be an object.", "")
    if unknown_fields := sorted(set(config) - allowed_fields):
        raise _build_error(
            f"endpoint_config.{unknown_fields[0]}",
            f"Unknown field {unknown_fields[0]!r}.",
            format_message("Supported fields: {fields}.", fields=", ".join(sorted(allowed_fields))),
            "unknown_field",
        )
    for field_name in ("env", "headers"):
        pairs = config.get(field_name, {})
        are_strings = isinstance(pairs, Mapping) and all(isinstance(v, str) for v in pairs.values())
        if not are_strings:
            raise _build_error(
                f"endpoint_config.{field_name}", "Must be an object with string values.", ""
            )
        if MASK in pairs.values():
            raise _build_error(
                f"endpoint_config.{field_name}",
                "A preset can't contain a masked value.",
                "Replace it with a parameter, such as ${TOKEN}.",
                "secret_in_preset",
            )
    if transport == "stdio":
        _check_command(config)
        check_no_dangerous_variables(config.get("env", {}))
    else:
        url = urlsplit(re.sub(r"\$\{[A-Z0-9_]+\}", "x", str(config.get("url", ""))))
        if url.scheme not in ("http", "https") or not url.hostname or url.username:
            raise _build_error(
                "endpoint_config.url",
                "An HTTP server requires a URL.",
                "Use the full URL: https://mcp.example.com/mcp.",
                "bad_url",
            )


def _check_command(config: Mapping[str, Any]) -> None:
    command, args = config.get("command"), config.get("args", [])
    if not isinstance(command, str) or not command.strip() or "${" in command:
        raise _build_error(
            "endpoint_config.command",
            "The command is missing or contains a parameter.",
            "Enter a launcher, such as npx or uvx.",
        )
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise _build_error("endpoint_config.args", "Must be a list of strings.", "")


def _check_auth_config(transport: str, auth_type: str, config: Mapping[str, Any]) -> None:
    if auth_type not in AUTH_FIELDS or (transport == "stdio" and auth_type != "none"):
        auth_types = ", ".join(AUTH_FIELDS) if transport == "http" else "none"
        raise _build_error(
            "auth_config.type",
            "Unknown authentication type.",
            format_message("Use one of: {values}.", values=auth_types),
        )
    public_fields, encrypted_fields = AUTH_FIELDS[auth_type]
    if unknown_fields := sorted(set(config) - public_fields - encrypted_fields):
        raise _build_error(
            f"auth_config.{unknown_fields[0]}",
            f"Unknown authentication field {unknown_fields[0]!r}.",
            format_message(
                "Supported fields: {fields}.",
                fields=", ".join(sorted(public_fields | encrypted_fields)) or "none",
            ),
            "unknown_field",
        )
    if auth_type in ("bearer_token", "api_key") and (
        missing := sorted(encrypted_fields - set(config))
    ):
        raise _build_error(
            f"auth_config.{missing[0]}",
            f"`{missing[0]}` is missing.",
            "Enter a parameter, such as ${TOKEN}.",
        )


def _iterate_texts(columns: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield each string of the configuration: path, text, and whether it is encrypted."""
    for field_name, value in columns["endpoint_config"].items():
        path = f"endpoint_config.{field_name}"
        if isinstance(value, Mapping):
            yield from ((f"{path}.{name}", text, True) for name, text in value.items())
        else:
            texts = value if isinstance(value, list) else [value]
            yield from ((path, str(text), False) for text in texts)
    _public, encrypted_fields = AUTH_FIELDS[columns["auth_type"]]
    for field_name, value in columns["auth_config"].items():
        # These fields are secret, regardless of their names.
        path = f"auth_config.{field_name}"
        yield (
            (f"{path}.secret" if field_name in encrypted_fields else path),
            str(value),
            field_name in encrypted_fields,
        )


def _build_error(path: str, text: str, remedy: str, code: str = "invalid") -> InvalidInput:
    return InvalidInput(text, code=code, field=path.removesuffix(".secret"), remedy=remedy)
