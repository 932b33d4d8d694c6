"""Find the servers in a client's configuration file."""

from collections.abc import Iterator
from dataclasses import dataclass

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.json_reader import SourceNode
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.import_export.registry_files import convert_registry_file

WRAPPER_KEYS = ("mcpServers", "servers", "mcp_servers", "context_servers")
URL_KEYS = ("url", "serverUrl", "httpUrl", "endpoint")
TRANSPORT_KEYS = ("transport_type", "transport", "type")
MAX_SERVERS = 200

_SERVER_KEYS = (*URL_KEYS, *TRANSPORT_KEYS, "command", "endpoint_config")
# Other keys in the clients' files.
_OTHER_KEYS = frozenset(("$schema", "inputs"))


@dataclass(frozen=True, slots=True)
class ServerNode:
    """A server in the source; `name` is None if it has none."""

    name: str | None
    line: int
    node: SourceNode


@dataclass(frozen=True, slots=True)
class ImportDocument:
    """The servers of a file, VS Code's `inputs`, and unused keys."""

    servers: tuple[ServerNode, ...]
    inputs: SourceNode | None
    unused_keys: tuple[str, ...]


def detect_servers(root: SourceNode) -> ImportDocument:
    """Return the servers of a file.

    Raises `InvalidInput` (`nothing_to_import`, `not_a_configuration`, `too_many_servers`).
    """
    document = _find_servers(convert_registry_file(root))
    if len(document.servers) > MAX_SERVERS:
        raise InvalidInput(
            format_message(
                "The text contains {count} servers. The limit is {most_servers}.",
                count=len(document.servers),
                most_servers=MAX_SERVERS,
            ),
            code="too_many_servers",
            remedy="Import them in several batches.",
        )
    if not document.servers:
        raise InvalidInput(
            "The text contains no servers.",
            code="nothing_to_import",
            remedy='Paste a configuration, such as {"name": {"url": "https://…"}}.',
        )
    return document


def _find_servers(root: SourceNode) -> ImportDocument:
    if isinstance(root.value, list):
        return ImportDocument(tuple(_walk_list(root)), None, ())
    if not isinstance(root.value, dict):
        raise _build_format_error("a single value")
    if key := _find_wrapper_key(root):
        wrapped_node = root.get(key)
        document = (
            _find_servers(wrapped_node)
            if wrapped_node and wrapped_node.fields
            else ImportDocument((), None, ())
        )
        return ImportDocument(
            document.servers, document.inputs, document.unused_keys + _list_unused_keys(root, key)
        )
    wrapper_keys = [name for name in WRAPPER_KEYS if _is_wrapper(root.get(name))]
    if wrapper_keys:
        servers = [
            server
            for name in wrapper_keys
            if (node := root.get(name))
            for server in _walk_wrapper(node)
        ]
        return ImportDocument(
            tuple(servers), root.get("inputs"), _list_unused_keys(root, *wrapper_keys)
        )
    if _is_server(root):
        return ImportDocument(
            (ServerNode(_find_name(root), root.line, root),), root.get("inputs"), ()
        )
    if root.fields and not any(isinstance(node.value, dict) for _, _, node in root.fields):
        raise _build_format_error("no server")
    return ImportDocument(tuple(_walk_wrapper(root)), root.get("inputs"), ())


def _find_wrapper_key(root: SourceNode) -> str:
    """Return the key that wraps the whole configuration, or "".

    VS Code and others keep the servers under `mcp` in their settings, some under `tools`.
    """
    candidate = root.get("mcp")
    if candidate is not None and isinstance(candidate.value, dict) and not _is_server(candidate):
        return "mcp"
    candidate = root.get("tools")
    if candidate is not None and any(_is_wrapper(candidate.get(name)) for name in WRAPPER_KEYS):
        return "tools"
    return ""


def walk_servers(node: SourceNode | None) -> Iterator[ServerNode]:
    """Yield the servers of a map by name or of a list."""
    if node is not None:
        yield from _walk_wrapper(node)


def _walk_wrapper(node: SourceNode) -> Iterator[ServerNode]:
    if isinstance(node.value, list):
        yield from _walk_list(node)
        return
    for name, line, value in node.fields:
        if name not in _OTHER_KEYS:
            yield ServerNode(name, line, value)


def _walk_list(node: SourceNode) -> Iterator[ServerNode]:
    for item in node.items:
        yield ServerNode(_find_name(item), item.line, item)


def _find_name(node: SourceNode) -> str | None:
    name_node = node.get("name")
    return name_node.value if name_node is not None and isinstance(name_node.value, str) else None


def _is_wrapper(node: SourceNode | None) -> bool:
    return node is not None and isinstance(node.value, dict | list) and not _is_server(node)


def _is_server(node: SourceNode) -> bool:
    """Tell whether an object is a server; in a map, a server may be named `url`."""
    for key in _SERVER_KEYS:
        child = node.get(key)
        if child is None:
            continue
        if isinstance(child.value, dict) == (key == "endpoint_config"):
            return True
    return False


def _list_unused_keys(root: SourceNode, *used_keys: str) -> tuple[str, ...]:
    names = (
        name for name, _, _ in root.fields if name not in used_keys and name not in _OTHER_KEYS
    )
    return tuple(dict.fromkeys(make_visible(name, 64) for name in names))


def _build_format_error(contents: str) -> InvalidInput:
    return InvalidInput(
        format_message("The text isn't a server configuration: it contains {what}.", what=contents),
        code="not_a_configuration",
        remedy='Paste servers by name: {"name": {"url": "https://…"}} or {"name": {"command": …}}.',
    )
