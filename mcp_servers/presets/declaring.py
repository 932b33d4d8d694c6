"""What a preset declares must hold together: its configuration, sign-in and parameters. Pure.

A secret is filled in by whoever uses the preset and never stands in it; and it goes only where
values are sealed: headers, environment, credentials.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import re2

from bonobot.lib.masking import MASK
from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from mcp_servers.configuration import AUTH_FIELDS, HTTP_FIELDS, STDIO_FIELDS
from mcp_servers.placeholders import references
from mcp_servers.process_rules import check_no_dangerous_variables

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
    """Raise `Invalid` naming the first thing that doesn't hold; complete the parameters.

    Codes: `invalid`, `unknown_field`, `unknown_parameter` (used, not declared),
    `unused_parameter`, `secret_in_preset` (a value that must be filled in by each user),
    `secret_in_public` (a secret where values are not sealed).
    """
    columns["parameters"] = _parameters(columns["parameters"])
    declared = {one["name"]: one for one in columns["parameters"]}
    _endpoint(columns["transport_type"], columns["endpoint_config"])
    _sign_in(columns["transport_type"], columns["auth_type"], columns["auth_config"])
    used: set[str] = set()
    for place, text, sealed in _texts(columns):
        used |= _used(place, text, sealed, declared)
    for name in declared.keys() - used:
        raise _wrong(
            "parameters",
            f"The parameter `{name}` is used nowhere.",
            say("Write ${{{name}}} where its value belongs, or remove it.", name=name),
            "unused_parameter",
        )


def _used(place: str, text: str, sealed: bool, declared: Mapping[str, dict[str, Any]]) -> set[str]:
    """Return the parameters that a text names; raises `Invalid` where it may not stand there."""
    names = {found.name for found in references(text)}
    for name in sorted(names - declared.keys()):
        raise _wrong(
            place,
            f"`${{{name}}}` is no parameter.",
            "Declare it, or write the value itself.",
            "unknown_parameter",
        )
    secret = any(declared[name]["secret"] for name in names)
    if secret and not sealed:
        raise _wrong(
            place,
            "A secret may stand in headers, environment and credentials only.",
            "Elsewhere everybody who sees the server would read it.",
            "secret_in_public",
        )
    if sealed and not secret and _SECRET.search(place.rpartition(".")[2]):
        raise _wrong(
            place,
            "A credential is filled in by whoever uses the preset.",
            "Write a parameter in its place, such as ${TOKEN}, and mark it as secret.",
            "secret_in_preset",
        )
    return names


def _parameters(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or len(given) > MOST_PARAMETERS:
        raise _wrong("parameters", f"At most {MOST_PARAMETERS} parameters, as a list.", "")
    found = [_parameter(one, f"parameters.{at}") for at, one in enumerate(given)]
    names = [one["name"] for one in found]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise _wrong("parameters", f"`{twice}` stands there twice.", "Name each one once.")
    return found


def _parameter(given: Any, place: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise _wrong(place, "A parameter is an object.", "Give it a name and a label.")
    if strange := sorted(set(given) - set(_MEMBERS)):
        raise _wrong(
            f"{place}.{strange[0]}",
            f"A parameter has no member {strange[0]!r}.",
            say("Members: {members}.", members=", ".join(_MEMBERS)),
            "unknown_field",
        )
    for member, kind in _MEMBERS.items():
        if member in given and not isinstance(given[member], kind):
            raise _wrong(f"{place}.{member}", f"`{member}` must be {kind.__name__}.", "")
    name = str(given.get("name", ""))
    if not _NAME.fullmatch(name):
        raise _wrong(
            f"{place}.name", f"`{visible(name, 64)}` is no name.", "Use capitals, as in API_TOKEN."
        )
    secret, default = bool(given.get("secret", False)), str(given.get("default", ""))
    if secret and default:
        raise _wrong(
            f"{place}.default", "A secret has no default.", "Leave it out.", "secret_in_preset"
        )
    if given.get("kind", "") not in KINDS:
        raise _wrong(f"{place}.kind", "There is no such kind.", "Use folder, file, url or nothing.")
    _pattern(str(given.get("pattern", "")), place)
    texts = {
        "label": str(given.get("label") or name)[:60],
        "help": str(given.get("help", ""))[:200],
    }
    rest = {member: given[member] for member in ("kind", "pattern") if given.get(member)}
    required = bool(given.get("required", True))
    return {"name": name, "secret": secret, "required": required, "default": default} | texts | rest


def _pattern(pattern: str, place: str) -> None:
    try:
        re2.compile(pattern)
    except re2.error:
        raise _wrong(
            f"{place}.pattern", "The pattern can't be read.", "Use the syntax of RE2."
        ) from None


def _endpoint(transport: str, config: Any) -> None:
    known = {"stdio": STDIO_FIELDS, "http": HTTP_FIELDS}.get(transport)
    if known is None:
        raise _wrong("transport_type", f"There is no transport {transport!r}.", "stdio or http.")
    if not isinstance(config, Mapping):
        raise _wrong("endpoint_config", "It must be an object.", "")
    if strange := sorted(set(config) - known):
        raise _wrong(
            f"endpoint_config.{strange[0]}",
            f"It has no member {strange[0]!r}.",
            say("Members: {known}.", known=", ".join(sorted(known))),
            "unknown_field",
        )
    for member in ("env", "headers"):
        pairs = config.get(member, {})
        texts = isinstance(pairs, Mapping) and all(isinstance(v, str) for v in pairs.values())
        if not texts:
            raise _wrong(f"endpoint_config.{member}", "It must be an object of strings.", "")
        if MASK in pairs.values():
            raise _wrong(
                f"endpoint_config.{member}",
                "A masked value can't be filled in.",
                "Write a parameter in its place, such as ${TOKEN}.",
                "secret_in_preset",
            )
    if transport == "stdio":
        _command(config)
        check_no_dangerous_variables(config.get("env", {}), field="endpoint_config.env")
    else:
        url = urlsplit(re.sub(r"\$\{[A-Z0-9_]+\}", "x", str(config.get("url", ""))))
        if url.scheme not in ("http", "https") or not url.hostname or url.username:
            raise _wrong(
                "endpoint_config.url",
                "An HTTP server needs a URL.",
                "Write it whole: https://mcp.example.com/mcp.",
                "bad_url",
            )


def _command(config: Mapping[str, Any]) -> None:
    command, args = config.get("command"), config.get("args", [])
    if not isinstance(command, str) or not command.strip() or "${" in command:
        raise _wrong(
            "endpoint_config.command",
            "A program needs a command without parameters.",
            "Name a launcher, such as npx or uvx.",
        )
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise _wrong("endpoint_config.args", "It must be a list of strings.", "")


def _sign_in(transport: str, kind: str, config: Mapping[str, Any]) -> None:
    if kind not in AUTH_FIELDS or (transport == "stdio" and kind != "none"):
        kinds = ", ".join(AUTH_FIELDS) if transport == "http" else "none"
        raise _wrong(
            "auth_config.type",
            "There is no such sign-in.",
            say("Use one of: {kinds}.", kinds=kinds),
        )
    public, sealed = AUTH_FIELDS[kind]
    if strange := sorted(set(config) - public - sealed):
        raise _wrong(
            f"auth_config.{strange[0]}",
            f"This sign-in has no member {strange[0]!r}.",
            say("Members: {public}.", public=", ".join(sorted(public | sealed)) or "none"),
            "unknown_field",
        )
    if kind in ("bearer_token", "api_key") and (missing := sorted(sealed - set(config))):
        raise _wrong(
            f"auth_config.{missing[0]}", f"`{missing[0]}` is missing.", "Write ${TOKEN} there."
        )


def _texts(columns: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield each text of the configuration: where it is, what it says, whether it is sealed."""
    for member, value in columns["endpoint_config"].items():
        place = f"endpoint_config.{member}"
        if isinstance(value, Mapping):
            yield from ((f"{place}.{name}", text, True) for name, text in value.items())
        else:
            texts = value if isinstance(value, list) else [value]
            yield from ((place, str(text), False) for text in texts)
    _public, sealed = AUTH_FIELDS[columns["auth_type"]]
    for member, value in columns["auth_config"].items():
        # A credential's own members are secret by their nature, whatever they are called.
        place = f"auth_config.{member}"
        yield (f"{place}.secret" if member in sealed else place), str(value), member in sealed


def _wrong(place: str, text: str, remedy: str, code: str = "invalid") -> Invalid:
    return Invalid(text, code=code, field=place.removesuffix(".secret"), remedy=remedy)
