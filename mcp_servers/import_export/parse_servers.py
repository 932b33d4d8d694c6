"""Parse client configurations into import entries."""

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from bonobot.core.http.egress import EgressDenied, check_url
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import ConfigWarning, Problem
from bonobot.core.text.json_reader import SourceNode, describe_tolerated_syntax, read
from bonobot.core.text.secret_names import is_secret_name
from bonobot.core.text.untrusted_text import make_visible
from bonobot.core.text.yaml_reader import is_yaml, read_yaml
from mcp_servers.import_export.detect_format import (
    TRANSPORT_KEYS,
    URL_KEYS,
    ServerNode,
    detect_servers,
)
from mcp_servers.import_export.entries import EntryCollector, ImportEntry, Labels, SecretValue
from mcp_servers.launchers import find_unpinned_package
from mcp_servers.tool_names import check_name, slugify

AUTH_TYPES = ("none", "bearer_token", "api_key", "oauth2")
OAUTH_PUBLIC = frozenset(("client_id", "scopes", "token_url", "grant", "per", "issuer", "key_id"))
OAUTH_SEALED = ("client_secret", "private_key")
DEFAULT_KEY_HEADER = "X-API-Key"

_BEARER = re.compile(r"(?i)\s*bearer\s+(\S.*)", re.DOTALL)
_KEY_HEADER = re.compile(
    r"(?i)(?:.*-)?(?:api-?key|subscription-key|(?:access|api|auth|private)-token)"
)

# Fills a secret and reports missing values for the field; returns None if some are missing.
Fill = Callable[[str, str], str | None]


@dataclass(frozen=True, slots=True)
class ImportAuth:
    """The sign-in of an entry: type, public configuration and secrets."""

    type: str = "none"
    config: dict[str, str] = field(default_factory=dict)
    secrets: tuple[SecretValue, ...] = ()


def read_auth_headers(
    headers: Iterable[tuple[str, str]], fill: Fill, *, taken: bool
) -> tuple[ImportAuth, tuple[SecretValue, ...]]:
    """Return the sign-in from (name, text) headers, and all other headers as secrets.

    The sign-in is the first bearer token, else the first API key header; none if the entry
    `has_auth` already.
    """
    pairs = tuple(headers)
    chosen = None if taken else _find_auth_header(pairs)
    others = tuple(_read_headers((pair for pair in pairs if pair is not chosen), fill))
    if chosen is None:
        return ImportAuth(), others
    name, text = chosen
    token = _BEARER.fullmatch(text) if name.lower() == "authorization" else None
    value = fill(token.group(1).strip() if token else text, f"headers.{name}")
    if token:
        return ImportAuth("bearer_token", {}, _build_auth_secret("token", value)), others
    return ImportAuth("api_key", {"header": name}, _build_auth_secret("key", value)), others


def _read_headers(pairs: Iterator[tuple[str, str]], fill: Fill) -> Iterator[SecretValue]:
    for name, text in pairs:
        value = fill(text, f"headers.{name}")
        if value is not None:
            yield SecretValue("header", name, value)


def _find_auth_header(pairs: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    bearer = (p for p in pairs if p[0].lower() == "authorization" and _BEARER.fullmatch(p[1]))
    keys = (pair for pair in pairs if _KEY_HEADER.fullmatch(pair[0].replace("_", "-")))
    return next(bearer, None) or next(keys, None)


def _build_auth_secret(name: str, value: str | None) -> tuple[SecretValue, ...]:
    return () if value is None else (SecretValue("auth", name, value),)


def from_members(kind: str, members: dict[str, str], fill: Fill, where: str) -> ImportAuth:
    """Return the sign-in for the fields of `auth_config`; masked secrets become parameters."""
    if kind == "bearer_token":
        return ImportAuth(
            kind, {}, _build_auth_secret("token", fill(members.get("token", ""), f"{where}.token"))
        )
    if kind == "api_key":
        header = members.get("header") or DEFAULT_KEY_HEADER
        key = fill(members.get("key", ""), f"{where}.key")
        place = {"in": members["in"]} if members.get("in") else {}
        return ImportAuth(kind, {"header": header, **place}, _build_auth_secret("key", key))
    if kind == "oauth2":
        return _read_oauth(members, fill, where)
    return ImportAuth()


def _read_oauth(members: dict[str, str], fill: Fill, where: str) -> ImportAuth:
    """Return an OAuth sign-in; without a key or browser login, the client secret is required."""
    public = {name: text for name, text in members.items() if name in OAUTH_PUBLIC}
    given = [name for name in OAUTH_SEALED if members.get(name)]
    if not given and members.get("grant") != "authorization_code":
        given = ["client_secret"]
    filled = ((name, fill(members.get(name, ""), f"{where}.{name}")) for name in given)
    return ImportAuth(
        "oauth2",
        public,
        tuple(one for name, text in filled for one in _build_auth_secret(name, text)),
    )


MEMBERS = frozenset(("declared", "document", "document_url", "operations"))


def read_api_config(members: Mapping[str, SourceNode], collector: EntryCollector) -> dict[str, Any]:
    """Return an API's fields of `endpoint_config`; they are validated when the server is saved."""
    found: dict[str, Any] = {}
    if (node := members.get("document_url")) is not None:
        found["document_url"] = collector.plain(
            (collector.text(node, "document_url") or "").strip(), "document_url"
        )
    if (node := members.get("document")) is not None:
        # Unchanged: apparent variables in it belong to the API.
        found["document"] = node.value if isinstance(node.value, str) else node.plain()
    if (node := members.get("declared")) is not None:
        # Unchanged, too; it is validated later.
        return found | {"declared": node.plain()}
    node = members.get("operations")
    if node is None or not isinstance(node.value, list):
        detail, remedy = "`operations` must be a list.", 'Write "operations": ["GET /pets"].'
        collector.refuse("bad_value", detail, "operations", remedy, node.line if node else 0)
        return found
    named = (collector.text(one, f"operations[{i}]") for i, one in enumerate(node.items))
    return found | {"operations": [one for one in named if one is not None]}


Transport = Literal["stdio", "http", "openapi", ""]
Members = dict[str, SourceNode]

TRANSPORTS: dict[str, Transport] = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "https": "http",
    "sse": "http",
    "remote": "http",
    "streamable": "http",
    "streamable-http": "http",
    "streamablehttp": "http",
    "openapi": "openapi",
}
_OF_STDIO = frozenset(("command", "args", "env", "cwd"))
_SIGN_IN = frozenset(("auth", "auth_config"))
_OF_HTTP = frozenset((*URL_KEYS, "headers")) | _SIGN_IN
_OF_BOTH = frozenset((*TRANSPORT_KEYS, "name", "enabled", "disabled", "endpoint_config"))
_SAYS_NOTHING = frozenset(("www", "mcp", "api", "server", "app"))


def read_server(
    found: ServerNode, values: Mapping[str, str], labels: Labels, taken_over: Collection[str] = ()
) -> ImportEntry:
    """Return the entry of a server with all its problems.

    `values` fill its references; a reference without a value becomes a parameter and a
    `missing_value` problem. `known_fields` are handled by the caller.
    """
    collector = EntryCollector(found.line, values, labels, slugify(found.name or "") or "server")
    members = _read_fields(found.node, collector)
    transport = _read_transport(members, collector)
    endpoint: dict[str, Any] = {}
    secrets: tuple[SecretValue, ...] = ()
    sign_in = ImportAuth()
    if transport == "stdio":
        endpoint, secrets = _read_stdio_config(members, collector)
    elif transport in ("http", "openapi"):
        endpoint, sign_in, secrets = _read_http_config(members, collector)
    if transport == "openapi":
        endpoint |= read_api_config(members, collector)
    beyond = {name: node for name, node in members.items() if name not in taken_over}
    _warn_unused_fields(beyond, transport, collector)
    name = _choose_name(found, endpoint, collector)
    return ImportEntry(
        name=name,
        slug=slugify(name),
        line=found.line,
        transport_type=transport,
        endpoint_config=endpoint,
        auth_type=sign_in.type,
        auth_config=sign_in.config,
        secrets=(*secrets, *sign_in.secrets),
        enabled=_read_enabled(members, collector),
        parameters=tuple(collector.parameters.values()),
        problems=tuple(collector.problems),
        notices=tuple(collector.notices),
    )


def _read_fields(node: SourceNode, collector: EntryCollector) -> Members:
    if not isinstance(node.value, dict):
        remedy = 'Write {"url": "https://…"} or {"command": …}.'
        collector.refuse("not_an_object", "A server must be an object.", "", remedy, node.line)
    members: Members = {}
    config = node.get("endpoint_config")
    for name, _, value in (*node.members, *(config.members if config else ())):
        if name in members:
            shown = make_visible(name, 64)
            collector.tell(
                "repeated_member",
                format_message("`{shown}` came twice; the last one counts.", shown=shown),
                shown,
            )
        members[name] = value
    return members


def _read_transport(members: Members, collector: EntryCollector) -> Transport:
    said: Transport = ""
    for key in TRANSPORT_KEYS:
        node = members.get(key)
        if node is None or node.value is None:
            continue
        word = str(node.value).strip().lower().replace("_", "-")
        if word not in TRANSPORTS:
            shown = make_visible(str(node.value), 40) if isinstance(node.value, str) else "this"
            remedy = "Use `stdio`, `http`, `streamable_http`, `sse` or `openapi`."
            detail = format_message("There is no transport `{shown}`.", shown=shown)
            collector.refuse("unknown_transport", detail, "transport_type", remedy, node.line)
            return ""
        said = said or TRANSPORTS[word]
    found = {
        "http": next((key for key in URL_KEYS if key in members), ""),
        "stdio": "command" if "command" in members else "",
    }
    return _resolve_transport(said, found["http"], found["stdio"], collector)


def _resolve_transport(
    said: Transport, url: str, command: str, collector: EntryCollector
) -> Transport:
    """Return the transport of a server; "" if it is ambiguous or incomplete."""
    if url and command and not said:
        detail = format_message("It has both `{url}` and `command`.", url=url)
        remedy = 'Keep one of them, or say which: "type": "http" or "stdio".'
        collector.refuse("ambiguous_transport", detail, "transport_type", remedy)
        return ""
    if collector.problems and not (url or command):
        return ""
    wanted: Transport = said or ("stdio" if command else "http")
    if command if wanted == "stdio" else url:
        return wanted
    missing = "command" if wanted == "stdio" else "url"
    neither = "" if said else "It has neither `url` nor `command`."
    collector.refuse(
        "missing_endpoint",
        neither
        or format_message(
            "A server over {wanted} needs a `{missing}`, and has none.",
            wanted=wanted,
            missing=missing,
        ),
        missing,
        'Write "url": "https://…", or "command": "npx" with "args".',
    )
    return ""


def _read_stdio_config(
    members: Members, collector: EntryCollector
) -> tuple[dict[str, Any], tuple[SecretValue, ...]]:
    command, args = _read_command(members, collector)
    endpoint: dict[str, Any] = {
        "command": collector.plain(command, "command"),
        "args": [collector.plain(arg, f"args[{i}]") for i, arg in enumerate(args)],
    }
    if (cwd := members.get("cwd")) is not None and cwd.value is not None:
        endpoint["cwd"] = collector.plain(collector.text(cwd, "cwd") or "", "cwd")
    if find_unpinned_package(endpoint["command"], endpoint["args"]):
        collector.tell("unpinned_version", "The package has no version; name one.", "args")
    if any(_is_secret_option(arg) for arg in args):
        collector.tell(
            "secret_in_arguments",
            "An argument looks like a secret; arguments are stored and shown openly. "
            "Use `env`, if the server can read it from there.",
            "args",
        )
    secrets = tuple(
        SecretValue("env", name, value)
        for name, text in collector.texts(members.get("env"), "env")
        # Variables may be empty.
        if (value := collector.secret(text, f"env.{name}") if text else "") is not None
    )
    return endpoint, secrets


def _read_command(members: Members, collector: EntryCollector) -> tuple[str, list[str]]:
    node = members["command"]
    args = _read_texts(members.get("args"), "args", collector)
    if isinstance(node.value, list):
        words = [*_read_texts(node, "command", collector), *args]
    else:
        text = collector.text(node, "command") or ""
        words = [*_split(text, collector), *args] if not args else [text, *args]
    if len(words) > 2 and re.fullmatch(r"(?i)cmd(\.exe)?", words[0]) and words[1].lower() == "/c":
        collector.tell("unwrapped_command", "`cmd /c` of Windows was left out.", "command")
        words = words[2:]
    if not collector.problems and not (words and words[0].strip()):
        remedy = "Name a launcher, such as `npx` or `uvx`."
        collector.refuse("missing_endpoint", "The command is empty.", "command", remedy, node.line)
    return (words[0] if words else ""), words[1:]


def _split(text: str, collector: EntryCollector) -> list[str]:
    """Split a command line written as one string."""
    if not re.search(r"\s", text.strip()):
        return [text.strip()]
    try:
        return shlex.split(text)
    except ValueError:
        remedy = 'Write "command": "npx", "args": ["-y", "…"].'
        detail = "The command line has a quote that isn't closed."
        collector.refuse("bad_command", detail, "command", remedy)
        return [text]


def _read_texts(node: SourceNode | None, field: str, collector: EntryCollector) -> list[str]:
    if node is None or node.value is None:
        return []
    if not isinstance(node.value, list):
        remedy = 'Write each argument by itself: ["-y", "package@1.2.3"].'
        collector.refuse(
            "bad_value",
            format_message("`{field}` must be a list.", field=field),
            field,
            remedy,
            node.line,
        )
        return []
    found = (collector.text(item, f"{field}[{i}]") for i, item in enumerate(node.items))
    return [text for text in found if text is not None]


def _read_http_config(
    members: Members, collector: EntryCollector
) -> tuple[dict[str, Any], ImportAuth, tuple[SecretValue, ...]]:
    key = next(key for key in URL_KEYS if key in members)
    url = collector.plain((collector.text(members[key], key) or "").strip(), "url")
    if "${" not in url:
        _check(url, collector)
    if any(is_secret_name(name) for name, _ in _query(url)):
        collector.tell(
            "secret_in_url",
            "The URL carries a secret; URLs are stored and shown openly. Use a header, if the "
            "server takes one.",
            "url",
        )
    sign_in = _read_auth_config(members, collector)
    headers = collector.texts(members.get("headers"), "headers")
    from_headers, secrets = read_auth_headers(
        headers, collector.secret, taken=sign_in.type != "none"
    )
    return {"url": url}, (from_headers if sign_in.type == "none" else sign_in), secrets


def _check(url: str, collector: EntryCollector) -> None:
    try:
        check_url(url, allow_private=True)
    except EgressDenied as problem:
        problem.remedy = problem.remedy or "Write it whole: https://mcp.example.com/mcp."
        collector.add(problem, "url")
        return
    try:
        check_url(url, allow_private=False)
    except EgressDenied as problem:
        collector.tell(problem.code, f"{problem} {problem.remedy}".strip(), "url")


def _query(url: str) -> Iterator[tuple[str, str]]:
    try:
        yield from parse_qsl(urlsplit(url).query)
    except ValueError:
        return


def _read_auth_config(members: Members, collector: EntryCollector) -> ImportAuth:
    where = "auth_config" if "auth_config" in members else "auth"
    node = members.get(where)
    if node is None or not isinstance(node.value, dict):
        return ImportAuth()
    said = dict(collector.texts(_flatten_lists(node), where))
    kind = said.get("type", "none")
    if kind not in AUTH_TYPES:
        detail = format_message("There is no sign-in `{kind}`.", kind=make_visible(kind, 40))
        remedy = format_message("Use one of: {auth_types}.", auth_types=", ".join(AUTH_TYPES))
        collector.refuse(
            "unknown_auth", detail, format_message("{where}.type", where=where), remedy, node.line
        )
        return ImportAuth()
    for name in OAUTH_PUBLIC & said.keys():
        said[name] = collector.plain(said[name], f"{where}.{name}")
    return from_members(kind, said, collector.secret, where)


def _flatten_lists(node: SourceNode) -> SourceNode:
    """Return an object with its lists joined by spaces, like OAuth scopes."""
    members = []
    for name, line, value in node.members:
        if isinstance(value.value, list):
            words = " ".join(str(item.value) for item in value.items)
            members.append((name, line, SourceNode(words, value.line)))
        elif name != "configured" and value.value is not None:
            members.append((name, line, value))
    return SourceNode(node.value, node.line, members=tuple(members))


def _read_enabled(members: Members, collector: EntryCollector) -> bool:
    enabled = True
    for name, on in (("enabled", True), ("disabled", False)):
        node = members.get(name)
        if node is None or node.value is None:
            continue
        if not isinstance(node.value, bool):
            detail = format_message("`{name}` must be true or false.", name=name)
            collector.refuse("bad_value", detail, name, "Write true or false.", node.line)
        elif node.value is not on:
            enabled = False
    return enabled


def _warn_unused_fields(members: Members, transport: Transport, collector: EntryCollector) -> None:
    other = {"stdio": _OF_HTTP, "http": _OF_STDIO, "openapi": _OF_STDIO}.get(transport, frozenset())
    if transport == "stdio" and _has_no_auth(members):
        other -= _SIGN_IN
    known = (_OF_STDIO | _OF_HTTP | _OF_BOTH) - other
    if transport == "openapi":
        known |= MEMBERS
    if left := [make_visible(name, 64) for name in members if name not in known]:
        listed = ", ".join(f"`{name}`" for name in left[:20])
        collector.tell("left_out", format_message("Not taken over: {listed}.", listed=listed))


def _has_no_auth(members: Members) -> bool:
    said = [node.get("type") for name, node in members.items() if name in _SIGN_IN]
    return all(kind is None or kind.value == "none" for kind in said)


def _choose_name(found: ServerNode, endpoint: Mapping[str, Any], collector: EntryCollector) -> str:
    """Return the server's name, derived from its host or package if missing."""
    if found.name is not None:
        return found.name.strip()
    name = _derive_host_name(endpoint.get("url", "")) or _derive_package_name(
        endpoint.get("args", ())
    )
    if name:
        collector.tell(
            "named_by_import",
            format_message("It had no name and was called `{name}`.", name=name),
            "name",
        )
    return name


def _derive_host_name(url: str) -> str:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return ""
    labels = [label for label in host.split(".") if label not in _SAYS_NOTHING]
    if not labels or host.replace(".", "").isdigit() or ":" in host:
        return ""
    return labels[-2] if len(labels) > 1 else labels[0]


def _derive_package_name(args: Iterable[str]) -> str:
    package = next((arg for arg in args if re.fullmatch(r"@?[a-z][\w./@-]*", arg)), "")
    scope, _, name = re.sub(r"(?<=.)@.*", "", package).rpartition("/")
    return f"{scope.lstrip('@')}-{name}" if name in _SAYS_NOTHING and scope else name


def _is_secret_option(arg: str) -> bool:
    option, equals, value = arg.partition("=")
    if not option.startswith("-") or not is_secret_name(option.lstrip("-")):
        return False
    return not (equals and value.startswith("${"))


def parse(
    text: str,
    *,
    values: Mapping[str, str] | None = None,
    taken_over: Collection[str] = (),
) -> tuple[ImportEntry, ...]:
    """Return the servers in `text`, each with its problems.

    `values` fill `${NAME}` (a person's input, or the CLI's environment); `known_fields` are handled
    by the caller and not reported as unused. Raises `InvalidInput` about the whole text:
    `broken_json`, `broken_yaml`, `unsupported_yaml`, `too_large`, `too_deep`, `nothing_to_import`,
    `not_a_configuration`, `too_many_servers`.
    """
    reading = read_yaml(text) if is_yaml(text) else read(text)
    document = detect_servers(reading.root)
    notices = [ConfigWarning("tolerated", words) for words in describe_tolerated_syntax(reading)]
    if left_out := [name for name in document.left_out if name not in taken_over]:
        listed = ", ".join(f"`{name}`" for name in left_out[:20])
        notices.append(
            ConfigWarning(
                "left_out",
                format_message("Beside the servers, not taken over: {listed}.", listed=listed),
            )
        )
    labels = _read_input_labels(document.inputs)
    entries = [read_server(found, values or {}, labels, taken_over) for found in document.servers]
    return tuple(
        replace(
            entry,
            notices=(*notices, *entry.notices),
            problems=(*_validate_name(entry, entries[:index]), *entry.problems),
        )
        for index, entry in enumerate(entries)
    )


def _validate_name(entry: ImportEntry, before: list[ImportEntry]) -> tuple[Problem, ...]:
    """Return the problem with a name by itself or compared with earlier entries."""
    same = next((other for other in before if other.name == entry.name and entry.name), None)
    try:
        check_name(entry.name, [other.name for other in before])
    except Problem as problem:
        if same is not None:
            problem.code = "duplicate_name"
            problem.detail = f"`{entry.name}` is on line {same.line} already."
        problem.extra["line"] = entry.line
        return (problem,)
    return ()


def _read_input_labels(inputs: SourceNode | None) -> Labels:
    """Return label and password flag of VS Code's `inputs`, by ID."""
    labels: dict[str, tuple[str, bool]] = {}
    for item in inputs.items if inputs else ():
        described = item.plain()
        if isinstance(described, dict) and isinstance(described.get("id"), str):
            label = described.get("description")
            name = label if isinstance(label, str) and label else described["id"]
            labels[described["id"]] = (name, described.get("password") is True)
    return labels
