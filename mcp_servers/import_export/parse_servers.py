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
from bonobot.core.text.json_reader import SourceNode, describe_tolerated_syntax, read_json
from bonobot.core.text.secret_names import is_secret_name
from bonobot.core.text.untrusted_text import make_visible
from bonobot.core.text.yaml_reader import is_yaml, read_yaml
from mcp_servers.auth_config import OAUTH_PUBLIC_FIELDS
from mcp_servers.client_capabilities import MAX_TOKENS
from mcp_servers.import_export.detect_format import (
    TRANSPORT_KEYS,
    URL_KEYS,
    ServerNode,
    detect_servers,
)
from mcp_servers.import_export.entries import EntryCollector, ImportEntry, SecretValue
from mcp_servers.import_export.fill_placeholders import InputLabels
from mcp_servers.import_export.registry_files import is_registry_file
from mcp_servers.server_names import check_name, slugify
from mcp_servers.unpinned_packages import find_unpinned_package

AUTH_TYPES = ("none", "bearer_token", "api_key", "oauth2")
OAUTH_SECRET_FIELDS = ("client_secret", "private_key")
DEFAULT_KEY_HEADER = "X-API-Key"

_BEARER = re.compile(r"(?i)\s*bearer\s+(\S.*)", re.DOTALL)
_KEY_HEADER = re.compile(
    r"(?i)(?:.*-)?(?:api-?key|subscription-key|(?:access|api|auth|private)-token)"
)

# Fills a secret and reports missing values for the field; returns None if some are missing.
FillSecret = Callable[[str, str], str | None]
# Sections that only the configuration file's reader loads.
# Sections of a configuration file, which only `bonobot mcp apply` reads.
APPLIED_KEYS = (
    *("agents", "builtin", "model_endpoints", "skills", "workflows"),
    *("policy", "policy_draft", "budgets"),
)
API_FIELDS = frozenset(("declared", "document", "document_url", "operations"))
Transport = Literal["stdio", "http", "openapi", ""]
ServerFields = dict[str, SourceNode]
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
_STDIO_FIELDS = frozenset(("command", "args", "env", "cwd", "bundle"))
_AUTH_FIELDS = frozenset(("auth", "auth_config"))
_HTTP_FIELDS = frozenset((*URL_KEYS, "headers", "credential_key")) | _AUTH_FIELDS
_SETTING_FIELDS = frozenset(("allow_private", "preset", "sampling_budget_tokens"))
_COMMON_FIELDS = _SETTING_FIELDS | frozenset(
    (*TRANSPORT_KEYS, "name", "enabled", "disabled", "endpoint_config")
)
_CREDENTIAL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GENERIC_NAMES = frozenset(("www", "mcp", "api", "server", "app"))


@dataclass(frozen=True, slots=True)
class ImportAuth:
    """The sign-in of an entry: type, public configuration and secrets."""

    type: str = "none"
    config: dict[str, str] = field(default_factory=dict)
    secrets: tuple[SecretValue, ...] = ()


def read_auth_headers(
    headers: Iterable[tuple[str, str]], fill: FillSecret, *, has_auth: bool
) -> tuple[ImportAuth, tuple[SecretValue, ...]]:
    """Return the sign-in from (name, text) headers, and all other headers as secrets.

    The sign-in is the first bearer token, else the first API key header; none if the entry
    `has_auth` already.
    """
    pairs = tuple(headers)
    auth_header = None if has_auth else _find_auth_header(pairs)
    other_headers = tuple(_read_headers((pair for pair in pairs if pair is not auth_header), fill))
    if auth_header is None:
        return ImportAuth(), other_headers
    name, text = auth_header
    token = _BEARER.fullmatch(text) if name.lower() == "authorization" else None
    value = fill(token.group(1).strip() if token else text, f"headers.{name}")
    if token:
        return ImportAuth("bearer_token", {}, _build_auth_secret("token", value)), other_headers
    return ImportAuth("api_key", {"header": name}, _build_auth_secret("key", value)), other_headers


def _read_headers(pairs: Iterator[tuple[str, str]], fill: FillSecret) -> Iterator[SecretValue]:
    for name, text in pairs:
        value = fill(text, f"headers.{name}")
        if value is not None:
            yield SecretValue("header", name, value)


def _find_auth_header(pairs: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    bearer_headers = (
        p for p in pairs if p[0].lower() == "authorization" and _BEARER.fullmatch(p[1])
    )
    key_headers = (pair for pair in pairs if _KEY_HEADER.fullmatch(pair[0].replace("_", "-")))
    return next(bearer_headers, None) or next(key_headers, None)


def _build_auth_secret(name: str, value: str | None) -> tuple[SecretValue, ...]:
    return () if value is None else (SecretValue("auth", name, value),)


def build_auth(auth_type: str, fields: dict[str, str], fill: FillSecret, path: str) -> ImportAuth:
    """Return the sign-in for the fields of `auth_config`; masked secrets become parameters."""
    if auth_type == "bearer_token":
        return ImportAuth(
            auth_type,
            {},
            _build_auth_secret("token", fill(fields.get("token", ""), f"{path}.token")),
        )
    if auth_type == "api_key":
        header = fields.get("header") or DEFAULT_KEY_HEADER
        key = fill(fields.get("key", ""), f"{path}.key")
        location = {"in": fields["in"]} if fields.get("in") else {}
        return ImportAuth(auth_type, {"header": header, **location}, _build_auth_secret("key", key))
    if auth_type == "oauth2":
        return _read_oauth(fields, fill, path)
    return ImportAuth()


def _read_oauth(fields: dict[str, str], fill: FillSecret, path: str) -> ImportAuth:
    """Return an OAuth sign-in; without a key or browser login, the client secret is required."""
    public_fields = {name: text for name, text in fields.items() if name in OAUTH_PUBLIC_FIELDS}
    secret_names = [name for name in OAUTH_SECRET_FIELDS if fields.get(name)]
    if not secret_names and fields.get("grant") != "authorization_code":
        secret_names = ["client_secret"]
    filled_secrets = ((name, fill(fields.get(name, ""), f"{path}.{name}")) for name in secret_names)
    return ImportAuth(
        "oauth2",
        public_fields,
        tuple(secret for name, text in filled_secrets for secret in _build_auth_secret(name, text)),
    )


def read_api_config(fields: Mapping[str, SourceNode], collector: EntryCollector) -> dict[str, Any]:
    """Return an API's fields of `endpoint_config`; they are validated when the server is saved."""
    config: dict[str, Any] = {}
    if (node := fields.get("document_url")) is not None:
        config["document_url"] = collector.fill_text(
            (collector.read_text(node, "document_url") or "").strip(), "document_url"
        )
    if (node := fields.get("document")) is not None:
        # Unchanged: apparent variables in it belong to the API.
        config["document"] = node.value if isinstance(node.value, str) else node.to_python()
    if (node := fields.get("declared")) is not None:
        # Unchanged, too; it is validated later.
        return config | {"declared": node.to_python()}
    node = fields.get("operations")
    if node is None or not isinstance(node.value, list):
        detail, remedy = "`operations` must be a list.", 'Write "operations": ["GET /pets"].'
        collector.add_problem("bad_value", detail, "operations", remedy, node.line if node else 0)
        return config
    operations = (
        collector.read_text(item, f"operations[{i}]") for i, item in enumerate(node.items)
    )
    return config | {"operations": [item for item in operations if item is not None]}


def read_server(
    server_node: ServerNode,
    values: Mapping[str, str],
    labels: InputLabels,
    known_fields: Collection[str] = (),
) -> ImportEntry:
    """Return the entry of a server with all its problems.

    `values` fill its references; a reference without a value becomes a parameter and a
    `missing_value` problem. `known_fields` are handled by the caller.
    """
    collector = EntryCollector(
        server_node.line, values, labels, slugify(server_node.name or "") or "server"
    )
    fields = _read_fields(server_node.node, collector)
    transport = _read_transport(fields, collector)
    endpoint: dict[str, Any] = {}
    secrets: tuple[SecretValue, ...] = ()
    auth = ImportAuth()
    if transport == "stdio":
        endpoint, secrets = _read_stdio_config(fields, collector)
    elif transport in ("http", "openapi"):
        endpoint, auth, secrets = _read_http_config(fields, collector)
    if transport == "openapi":
        endpoint |= read_api_config(fields, collector)
    other_fields = {name: node for name, node in fields.items() if name not in known_fields}
    _warn_unused_fields(other_fields, transport, collector)
    name = _choose_name(server_node, endpoint, collector)
    return ImportEntry(
        name=name,
        slug=slugify(name),
        line=server_node.line,
        transport_type=transport,
        endpoint_config=endpoint,
        auth_type=auth.type,
        auth_config=auth.config,
        secrets=(*secrets, *auth.secrets),
        enabled=_read_flag(fields, "enabled", collector) is not False
        and not _read_flag(fields, "disabled", collector),
        allow_private=_read_flag(other_fields, "allow_private", collector) is True,
        preset=_read_preset(fields, collector),
        sampling_tokens=_read_sampling_budget(fields, collector),
        parameters=tuple(collector.parameters.values()),
        problems=tuple(collector.problems),
        notices=tuple(collector.notices),
    )


def _read_fields(node: SourceNode, collector: EntryCollector) -> ServerFields:
    if not isinstance(node.value, dict):
        remedy = 'Use {"url": "https://…"} or {"command": …}.'
        collector.add_problem("not_an_object", "A server must be an object.", "", remedy, node.line)
    fields: ServerFields = {}
    config = node.get("endpoint_config")
    for name, _, value in (*node.fields, *(config.fields if config else ())):
        if name in fields:
            shown_name = make_visible(name, 64)
            collector.add_warning(
                "repeated_member",
                format_message("`{path}` occurs twice. The last value is used.", path=shown_name),
                shown_name,
            )
        fields[name] = value
    return fields


def _read_transport(fields: ServerFields, collector: EntryCollector) -> Transport:
    transport: Transport = ""
    for key in TRANSPORT_KEYS:
        node = fields.get(key)
        if node is None or node.value is None:
            continue
        transport_name = str(node.value).strip().lower().replace("_", "-")
        if transport_name not in TRANSPORTS:
            shown_value = (
                make_visible(str(node.value), 40) if isinstance(node.value, str) else "this"
            )
            remedy = "Use `stdio`, `http`, `streamable_http`, `sse`, or `openapi`."
            detail = format_message("Unknown transport `{shown}`.", shown=shown_value)
            collector.add_problem("unknown_transport", detail, "transport_type", remedy, node.line)
            return ""
        transport = transport or TRANSPORTS[transport_name]
    endpoint_keys = {
        "http": next((key for key in URL_KEYS if key in fields), ""),
        "stdio": next((key for key in ("command", "bundle") if key in fields), ""),
    }
    return _resolve_transport(transport, endpoint_keys["http"], endpoint_keys["stdio"], collector)


def _resolve_transport(
    declared_transport: Transport, url: str, command: str, collector: EntryCollector
) -> Transport:
    """Return the transport of a server; "" if it is ambiguous or incomplete."""
    if url and command and not declared_transport:
        detail = format_message("It has both `{url}` and `command`.", url=url)
        remedy = 'Keep only one of them, or specify the transport: "type": "http" or "stdio".'
        collector.add_problem("ambiguous_transport", detail, "transport_type", remedy)
        return ""
    if collector.problems and not (url or command):
        return ""
    transport: Transport = declared_transport or ("stdio" if command else "http")
    if command if transport == "stdio" else url:
        return transport
    missing = "command" if transport == "stdio" else "url"
    detail = (
        format_message(
            "The {transport} transport requires `{missing}`, which is missing.",
            transport=transport,
            missing=missing,
        )
        if declared_transport
        else format_message("It has neither `url` nor `command`.")
    )
    collector.add_problem(
        "missing_endpoint",
        detail,
        missing,
        'Add "url": "https://…", or "command": "npx" with "args".',
    )
    return ""


def _read_stdio_config(
    fields: ServerFields, collector: EntryCollector
) -> tuple[dict[str, Any], tuple[SecretValue, ...]]:
    endpoint: dict[str, Any] = {}
    if (bundle := fields.get("bundle")) is not None:
        endpoint["bundle"] = collector.read_text(bundle, "bundle") or ""
    if "command" not in fields:  # the bundle's manifest has everything else
        return endpoint, ()
    command, args = _read_command(fields, collector)
    endpoint |= {
        "command": collector.fill_text(command, "command"),
        "args": [collector.fill_text(arg, f"args[{i}]") for i, arg in enumerate(args)],
    }
    if (cwd := fields.get("cwd")) is not None and cwd.value is not None:
        endpoint["cwd"] = collector.fill_text(collector.read_text(cwd, "cwd") or "", "cwd")
    if find_unpinned_package(endpoint["command"], endpoint["args"]):
        collector.add_warning(
            "unpinned_version", "The package has no version. Specify one.", "args"
        )
    if any(_is_secret_option(arg) for arg in args):
        collector.add_warning(
            "secret_in_arguments",
            "An argument looks like a secret. Arguments are stored and displayed in plain "
            "text. Use `env` if the server can read the value from there.",
            "args",
        )
    secrets = tuple(
        SecretValue("env", name, value)
        for name, text in collector.read_pairs(fields.get("env"), "env")
        # Variables may be empty.
        if (value := collector.fill_secret(text, f"env.{name}") if text else "") is not None
    )
    return endpoint, secrets


def _read_command(fields: ServerFields, collector: EntryCollector) -> tuple[str, list[str]]:
    node = fields["command"]
    args = _read_texts(fields.get("args"), "args", collector)
    if isinstance(node.value, list):
        command_line = [*_read_texts(node, "command", collector), *args]
    else:
        text = collector.read_text(node, "command") or ""
        command_line = [*_split_command(text, collector), *args] if not args else [text, *args]
    if (
        len(command_line) > 2
        and re.fullmatch(r"(?i)cmd(\.exe)?", command_line[0])
        and command_line[1].lower() == "/c"
    ):
        collector.add_warning(
            "unwrapped_command", "The Windows prefix `cmd /c` was removed.", "command"
        )
        command_line = command_line[2:]
    if not collector.problems and not (command_line and command_line[0].strip()):
        remedy = "Specify a launcher, such as `npx` or `uvx`."
        collector.add_problem(
            "missing_endpoint", "The command is empty.", "command", remedy, node.line
        )
    return (command_line[0] if command_line else ""), command_line[1:]


def _split_command(text: str, collector: EntryCollector) -> list[str]:
    """Split a command line written as one string."""
    if not re.search(r"\s", text.strip()):
        return [text.strip()]
    try:
        return shlex.split(text)
    except ValueError:
        remedy = 'Use the form "command": "npx", "args": ["-y", "…"].'
        detail = "The command line contains an unclosed quote."
        collector.add_problem("bad_command", detail, "command", remedy)
        return [text]


def _read_texts(node: SourceNode | None, field: str, collector: EntryCollector) -> list[str]:
    if node is None or node.value is None:
        return []
    if not isinstance(node.value, list):
        remedy = 'List each argument separately: ["-y", "package@1.2.3"].'
        collector.add_problem(
            "bad_value",
            format_message("`{field}` must be a list.", field=field),
            field,
            remedy,
            node.line,
        )
        return []
    texts = (collector.read_text(item, f"{field}[{i}]") for i, item in enumerate(node.items))
    return [text for text in texts if text is not None]


def _read_http_config(
    fields: ServerFields, collector: EntryCollector
) -> tuple[dict[str, Any], ImportAuth, tuple[SecretValue, ...]]:
    key = next(key for key in URL_KEYS if key in fields)
    url = collector.fill_text((collector.read_text(fields[key], key) or "").strip(), "url")
    if "${" not in url:
        _check_server_url(url, collector)
    if any(is_secret_name(name) for name, _ in _iterate_query(url)):
        collector.add_warning(
            "secret_in_url",
            "The URL contains a secret. URLs are stored and displayed in plain text. Use a "
            "header if the server accepts one.",
            "url",
        )
    auth = _read_auth_config(fields, collector)
    headers = collector.read_pairs(fields.get("headers"), "headers")
    header_auth, secrets = read_auth_headers(
        headers, collector.fill_secret, has_auth=auth.type != "none"
    )
    auth = header_auth if auth.type == "none" else auth
    if auth.type == "none" and (token := _read_credential(fields, collector)) is not None:
        auth = token
    return {"url": url}, auth, secrets


def _read_credential(fields: ServerFields, collector: EntryCollector) -> ImportAuth | None:
    """Return a bearer token by the name of a value, such as an environment variable."""
    node = fields.get("credential_key")
    if node is None or node.value is None:
        return None
    name = collector.read_text(node, "credential_key") or ""
    if not _CREDENTIAL_NAME.fullmatch(name):
        collector.add_problem(
            "bad_value",
            "`credential_key` must be the name of a value, without the value itself.",
            "credential_key",
            "Use letters, digits, and `_`, such as `github_token`, and set it in the environment.",
            node.line,
        )
        return None
    value = collector.fill_named_secret(name, "credential_key")
    return ImportAuth("bearer_token", {}, _build_auth_secret("token", value))


def _check_server_url(url: str, collector: EntryCollector) -> None:
    try:
        check_url(url, allow_private=True)
    except EgressDenied as problem:
        problem.remedy = problem.remedy or "Use the full URL: https://mcp.example.com/mcp."
        collector.add_existing_problem(problem, "url")
        return
    try:
        check_url(url, allow_private=False)
    except EgressDenied as problem:
        collector.add_warning(problem.code, f"{problem} {problem.remedy}".strip(), "url")


def _iterate_query(url: str) -> Iterator[tuple[str, str]]:
    try:
        yield from parse_qsl(urlsplit(url).query)
    except ValueError:
        return


def _read_auth_config(fields: ServerFields, collector: EntryCollector) -> ImportAuth:
    path = "auth_config" if "auth_config" in fields else "auth"
    node = fields.get(path)
    if node is None or not isinstance(node.value, dict):
        return ImportAuth()
    auth_fields = dict(collector.read_pairs(_flatten_lists(node), path))
    auth_type = auth_fields.get("type", "none")
    if auth_type not in AUTH_TYPES:
        detail = format_message(
            "Unknown authentication type `{kind}`.", kind=make_visible(auth_type, 40)
        )
        remedy = format_message("Use one of: {values}.", values=", ".join(AUTH_TYPES))
        collector.add_problem(
            "unknown_auth", detail, format_message("{where}.type", where=path), remedy, node.line
        )
        return ImportAuth()
    for name in OAUTH_PUBLIC_FIELDS & auth_fields.keys():
        auth_fields[name] = collector.fill_text(auth_fields[name], f"{path}.{name}")
    return build_auth(auth_type, auth_fields, collector.fill_secret, path)


def _flatten_lists(node: SourceNode) -> SourceNode:
    """Return an object with its lists joined by spaces, like OAuth scopes."""
    flattened = []
    for name, line, value in node.fields:
        if isinstance(value.value, list):
            joined_text = " ".join(str(item.value) for item in value.items)
            flattened.append((name, line, SourceNode(joined_text, value.line)))
        elif name != "configured" and value.value is not None:
            flattened.append((name, line, value))
    return SourceNode(node.value, node.line, fields=tuple(flattened))


def _read_flag(fields: ServerFields, name: str, collector: EntryCollector) -> bool | None:
    """Return a boolean, None if it is missing."""
    node = fields.get(name)
    if node is None or isinstance(node.value, bool | None):
        return None if node is None else node.value
    detail = format_message("`{name}` must be true or false.", name=name)
    collector.add_problem("bad_value", detail, name, "Use true or false.", node.line)
    return None


def _read_preset(fields: ServerFields, collector: EntryCollector) -> str:
    node = fields.get("preset")
    return "" if node is None or node.value is None else collector.read_text(node, "preset") or ""


def _read_sampling_budget(fields: ServerFields, collector: EntryCollector) -> int | None:
    node = fields.get("sampling_budget_tokens")
    if node is None or node.value is None:
        return None
    value = node.value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS:
        return value
    detail = "`sampling_budget_tokens` must be a number of tokens per day."
    collector.add_problem(
        "bad_value",
        detail,
        "sampling_budget_tokens",
        "Enter digits, such as 10000. 0 disables sampling.",
        node.line,
    )
    return None


def _warn_unused_fields(
    fields: ServerFields, transport: Transport, collector: EntryCollector
) -> None:
    unsupported_fields = {
        "stdio": _HTTP_FIELDS,
        "http": _STDIO_FIELDS,
        "openapi": _STDIO_FIELDS,
    }.get(transport, frozenset())
    if transport == "stdio" and _has_no_auth(fields):
        unsupported_fields -= _AUTH_FIELDS
    known_fields = (_STDIO_FIELDS | _HTTP_FIELDS | _COMMON_FIELDS) - unsupported_fields
    if transport == "openapi":
        known_fields |= API_FIELDS
    if unused_names := [make_visible(name, 64) for name in fields if name not in known_fields]:
        name_list = ", ".join(f"`{name}`" for name in unused_names[:20])
        collector.add_warning("left_out", format_message("Ignored: {listed}.", listed=name_list))


def _has_no_auth(fields: ServerFields) -> bool:
    auth_types = [node.get("type") for name, node in fields.items() if name in _AUTH_FIELDS]
    return all(auth_type is None or auth_type.value == "none" for auth_type in auth_types)


def _choose_name(
    server_node: ServerNode, endpoint: Mapping[str, Any], collector: EntryCollector
) -> str:
    """Return the server's name, derived from its host or package if missing."""
    if server_node.name is not None:
        return server_node.name.strip()
    name = _derive_host_name(endpoint.get("url", "")) or _derive_package_name(
        endpoint.get("args", ())
    )
    if name:
        collector.add_warning(
            "named_by_import",
            format_message("It had no name and was named `{name}`.", name=name),
            "name",
        )
    return name


def _derive_host_name(url: str) -> str:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return ""
    labels = [label for label in host.split(".") if label not in _GENERIC_NAMES]
    if not labels or host.replace(".", "").isdigit() or ":" in host:
        return ""
    return labels[-2] if len(labels) > 1 else labels[0]


def _derive_package_name(args: Iterable[str]) -> str:
    package = next((arg for arg in args if re.fullmatch(r"@?[a-z][\w./@-]*", arg)), "")
    scope, _, name = re.sub(r"(?<=.)@.*", "", package).rpartition("/")
    return f"{scope.lstrip('@')}-{name}" if name in _GENERIC_NAMES and scope else name


def _is_secret_option(arg: str) -> bool:
    option, equals, value = arg.partition("=")
    if not option.startswith("-") or not is_secret_name(option.lstrip("-")):
        return False
    return not (equals and value.startswith("${"))


def is_registry_text(text: str) -> bool:
    """Tell whether a text is a `server.json` or a registry's list; raises as `parse_import`."""
    source = read_yaml(text) if is_yaml(text) else read_json(text)
    return is_registry_file(source.root)


def parse_import(
    text: str,
    *,
    values: Mapping[str, str] | None = None,
    known_fields: Collection[str] = (),
) -> tuple[ImportEntry, ...]:
    """Return the servers in `text`, each with its problems.

    `values` fill `${NAME}` (a person's input, or the CLI's environment); `known_fields` are handled
    by the caller and not reported as unused. Raises `InvalidInput` about the whole text:
    `broken_json`, `broken_yaml`, `unsupported_yaml`, `too_large`, `too_deep`, `nothing_to_import`,
    `not_a_configuration`, `too_many_servers`.
    """
    source = read_yaml(text) if is_yaml(text) else read_json(text)
    document = detect_servers(source.root)
    notices = [ConfigWarning("tolerated", message) for message in describe_tolerated_syntax(source)]
    if unused_keys := [name for name in document.unused_keys if name not in known_fields]:
        name_list = ", ".join(f"`{name}`" for name in unused_keys[:20])
        notices.append(
            ConfigWarning(
                "left_out",
                format_message("Ignored entries outside the servers: {listed}.", listed=name_list),
            )
        )
    if applicable_keys := [name for name in APPLIED_KEYS if name in document.unused_keys]:
        notices.append(
            ConfigWarning(
                "not_imported",
                format_message(
                    "To load {listed} as well, use `bonobot mcp apply FILE`.",
                    listed=", ".join(f"`{name}`" for name in applicable_keys),
                ),
            )
        )
    labels = _read_input_labels(document.inputs)
    entries = [
        read_server(server_node, values or {}, labels, known_fields)
        for server_node in document.servers
    ]
    return tuple(
        replace(
            entry,
            notices=(*notices, *entry.notices),
            problems=(*_validate_name(entry, entries[:index]), *entry.problems),
        )
        for index, entry in enumerate(entries)
    )


def _validate_name(entry: ImportEntry, earlier_entries: list[ImportEntry]) -> tuple[Problem, ...]:
    """Return the problem with a name by itself or compared with earlier entries."""
    duplicate = next(
        (
            earlier_entry
            for earlier_entry in earlier_entries
            if earlier_entry.name == entry.name and entry.name
        ),
        None,
    )
    try:
        check_name(entry.name, [earlier_entry.name for earlier_entry in earlier_entries])
    except Problem as problem:
        if duplicate is not None:
            problem.code = "duplicate_name"
            problem.detail = f"`{entry.name}` is on line {duplicate.line} already."
        problem.extra["line"] = entry.line
        return (problem,)
    return ()


def _read_input_labels(inputs: SourceNode | None) -> InputLabels:
    """Return label and password flag of VS Code's `inputs`, by ID."""
    labels: dict[str, tuple[str, bool]] = {}
    for item in inputs.items if inputs else ():
        input_value = item.to_python()
        if isinstance(input_value, dict) and isinstance(input_value.get("id"), str):
            label = input_value.get("description")
            name = label if isinstance(label, str) and label else input_value["id"]
            labels[input_value["id"]] = (name, input_value.get("password") is True)
    return labels
