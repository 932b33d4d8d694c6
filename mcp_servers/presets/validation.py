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
from mcp_servers.process_rules import check_no_dangerous_variables
from mcp_servers.server_config import AUTH_FIELDS, HTTP_FIELDS, STDIO_FIELDS

KINDS = ("", "folder", "file", "url")
MOST_PARAMETERS = 50
_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_MEMBERS = {
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
_SECRET = re.compile(r"(?i)authori[sz]ation|token|secret|password|passwd|api[-_]?key|cookie")


def check_declared(columns: dict[str, Any]) -> None:
    """Raise `InvalidInput` for the first invalid field; normalize the parameters in place.

    Codes: `invalid`, `unknown_field`, `unknown_parameter` (used, not declared),
    `unused_parameter`, `secret_in_preset` (a value that must be filled in by each user),
    `secret_in_public` (a secret where values are not encrypted).
    """
    columns["parameters"] = _parse_parameters(columns["parameters"])
    declared = {one["name"]: one for one in columns["parameters"]}
    _check_endpoint_config(columns["transport_type"], columns["endpoint_config"])
    _sign_in(columns["transport_type"], columns["auth_type"], columns["auth_config"])
    used: set[str] = set()
    for place, text, sealed in _list_texts(columns):
        used |= _collect_references(place, text, sealed, declared)
    for name in declared.keys() - used:
        raise _build_error(
            "parameters",
            f"The parameter `{name}` is used nowhere.",
            format_message("Write ${{{name}}} where its value belongs, or remove it.", name=name),
            "unused_parameter",
        )


def _collect_references(
    place: str, text: str, sealed: bool, declared: Mapping[str, dict[str, Any]]
) -> set[str]:
    """Return the parameters in a text; raises `InvalidInput` if one is not allowed there."""
    names = {found.name for found in list_placeholders(text)}
    for name in sorted(names - declared.keys()):
        raise _build_error(
            place,
            f"`${{{name}}}` is no parameter.",
            "Declare it, or write the value itself.",
            "unknown_parameter",
        )
    secret = any(declared[name]["secret"] for name in names)
    if secret and not sealed:
        raise _build_error(
            place,
            "A secret may stand in headers, environment and credentials only.",
            "Elsewhere everybody who sees the server would read it.",
            "secret_in_public",
        )
    if sealed and not secret and _SECRET.search(place.rpartition(".")[2]):
        raise _build_error(
            place,
            "A credential is filled in by whoever uses the preset.",
            "Write a parameter in its place, such as ${TOKEN}, and mark it as secret.",
            "secret_in_preset",
        )
    return names


def _parse_parameters(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or len(given) > MOST_PARAMETERS:
        raise _build_error("parameters", f"At most {MOST_PARAMETERS} parameters, as a list.", "")
    found = [_parse_parameter(one, f"parameters.{at}") for at, one in enumerate(given)]
    names = [one["name"] for one in found]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise _build_error("parameters", f"`{twice}` stands there twice.", "Name each one once.")
    return found


def _parse_parameter(given: Any, place: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise _build_error(place, "A parameter is an object.", "Give it a name and a label.")
    if strange := sorted(set(given) - set(_MEMBERS)):
        raise _build_error(
            f"{place}.{strange[0]}",
            f"A parameter has no member {strange[0]!r}.",
            format_message("Members: {members}.", members=", ".join(_MEMBERS)),
            "unknown_field",
        )
    for member, kind in _MEMBERS.items():
        if member in given and not isinstance(given[member], kind):
            raise _build_error(f"{place}.{member}", f"`{member}` must be {kind.__name__}.", "")
    name = str(given.get("name", ""))
    if not _NAME.fullmatch(name):
        raise _build_error(
            f"{place}.name",
            f"`{make_visible(name, 64)}` is no name.",
            "Use capitals, as in API_TOKEN.",
        )
    secret, default = bool(given.get("secret", False)), str(given.get("default", ""))
    if secret and default:
        raise _build_error(
            f"{place}.default", "A secret has no default.", "Leave it out.", "secret_in_preset"
        )
    if given.get("kind", "") not in KINDS:
        raise _build_error(
            f"{place}.kind", "There is no such kind.", "Use folder, file, url or nothing."
        )
    _check_pattern(str(given.get("pattern", "")), place)
    texts = {
        "label": str(given.get("label") or name)[:60],
        "help": str(given.get("help", ""))[:200],
    }
    rest = {member: given[member] for member in ("kind", "pattern") if given.get(member)}
    required = bool(given.get("required", True))
    return {"name": name, "secret": secret, "required": required, "default": default} | texts | rest


def _check_pattern(pattern: str, place: str) -> None:
    try:
        re2.compile(pattern)
    except re2.error:
        raise _build_error(
            f"{place}.pattern", "The pattern can't be read.", "Use the syntax of RE2."
        ) from None


def _check_endpoint_config(transport: str, config: Any) -> None:
    known = {"stdio": STDIO_FIELDS, "http": HTTP_FIELDS}.get(transport)
    if known is None:
        raise _build_error(
            "transport_type", f"There is no transport {transport!r}.", "stdio or http."
        )
    if not isinstance(config, Mapping):
        raise _build_error("endpoint_config", "It must be an object.", "")
    if strange := sorted(set(config) - known):
        raise _build_error(
            f"endpoint_config.{strange[0]}",
            f"It has no member {strange[0]!r}.",
            format_message("Members: {known}.", known=", ".join(sorted(known))),
            "unknown_field",
        )
    for member in ("env", "headers"):
        pairs = config.get(member, {})
        texts = isinstance(pairs, Mapping) and all(isinstance(v, str) for v in pairs.values())
        if not texts:
            raise _build_error(f"endpoint_config.{member}", "It must be an object of strings.", "")
        if MASK in pairs.values():
            raise _build_error(
                f"endpoint_config.{member}",
                "A masked value can't be filled in.",
                "Write a parameter in its place, such as ${TOKEN}.",
                "secret_in_preset",
            )
    if transport == "stdio":
        _check_command(config)
        check_no_dangerous_variables(config.get("env", {}), field="endpoint_config.env")
    else:
        url = urlsplit(re.sub(r"\$\{[A-Z0-9_]+\}", "x", str(config.get("url", ""))))
        if url.scheme not in ("http", "https") or not url.hostname or url.username:
            raise _build_error(
                "endpoint_config.url",
                "An HTTP server needs a URL.",
                "Write it whole: https://mcp.example.com/mcp.",
                "bad_url",
            )


def _check_command(config: Mapping[str, Any]) -> None:
    command, args = config.get("command"), config.get("args", [])
    if not isinstance(command, str) or not command.strip() or "${" in command:
        raise _build_error(
            "endpoint_config.command",
            "A program needs a command without parameters.",
            "Name a launcher, such as npx or uvx.",
        )
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise _build_error("endpoint_config.args", "It must be a list of strings.", "")


def _sign_in(transport: str, kind: str, config: Mapping[str, Any]) -> None:
    if kind not in AUTH_FIELDS or (transport == "stdio" and kind != "none"):
        kinds = ", ".join(AUTH_FIELDS) if transport == "http" else "none"
        raise _build_error(
            "auth_config.type",
            "There is no such sign-in.",
            format_message("Use one of: {kinds}.", kinds=kinds),
        )
    public, sealed = AUTH_FIELDS[kind]
    if strange := sorted(set(config) - public - sealed):
        raise _build_error(
            f"auth_config.{strange[0]}",
            f"This sign-in has no member {strange[0]!r}.",
            format_message(
                "Members: {public}.", public=", ".join(sorted(public | sealed)) or "none"
            ),
            "unknown_field",
        )
    if kind in ("bearer_token", "api_key") and (missing := sorted(sealed - set(config))):
        raise _build_error(
            f"auth_config.{missing[0]}", f"`{missing[0]}` is missing.", "Write ${TOKEN} there."
        )


def _list_texts(columns: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield each string of the configuration: path, text, and whether it is encrypted."""
    for member, value in columns["endpoint_config"].items():
        place = f"endpoint_config.{member}"
        if isinstance(value, Mapping):
            yield from ((f"{place}.{name}", text, True) for name, text in value.items())
        else:
            texts = value if isinstance(value, list) else [value]
            yield from ((place, str(text), False) for text in texts)
    _public, sealed = AUTH_FIELDS[columns["auth_type"]]
    for member, value in columns["auth_config"].items():
        # These fields are secret, whatever their names.
        place = f"auth_config.{member}"
        yield (f"{place}.secret" if member in sealed else place), str(value), member in sealed


def _build_error(place: str, text: str, remedy: str, code: str = "invalid") -> InvalidInput:
    return InvalidInput(text, code=code, field=place.removesuffix(".secret"), remedy=remedy)
