"""Find the servers in what a client wrote: wrapped, in a list, in a bare map, or one by itself."""

from collections.abc import Iterator
from dataclasses import dataclass

from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from mcp_servers.portability.reader import Node

WRAPPERS = ("mcpServers", "servers", "mcp_servers", "context_servers")
URL_KEYS = ("url", "serverUrl", "httpUrl", "endpoint")
TRANSPORT_KEYS = ("transport_type", "transport", "type")
MOST_SERVERS = 200

_MARKS = (*URL_KEYS, *TRANSPORT_KEYS, "command", "endpoint_config")
# What else the clients keep in the same file, which is not about how to reach a server.
_BESIDE = frozenset(("$schema", "inputs"))


@dataclass(frozen=True, slots=True)
class Found:
    """A server where it stands; `name` is None where nothing names it."""

    name: str | None
    line: int
    node: Node


@dataclass(frozen=True, slots=True)
class Document:
    """The servers of a text, what VS Code calls inputs, and members that were left out."""

    servers: tuple[Found, ...]
    inputs: Node | None
    left_out: tuple[str, ...]


def survey(root: Node) -> Document:
    """Return what a text holds.

    Raises `Invalid` (`nothing_to_import`, `not_a_configuration`, `too_many_servers`).
    """
    document = _survey(root)
    if len(document.servers) > MOST_SERVERS:
        raise Invalid(
            say(
                "The text names {count} servers; at most {most_servers} fit.",
                count=len(document.servers),
                most_servers=MOST_SERVERS,
            ),
            code="too_many_servers",
            remedy="Import them in several parts.",
        )
    if not document.servers:
        raise Invalid(
            "There is no server in it.",
            code="nothing_to_import",
            remedy='Paste a configuration, such as {"name": {"url": "https://…"}}.',
        )
    return document


def _survey(root: Node) -> Document:
    if isinstance(root.value, list):
        return Document(tuple(_listed(root)), None, ())
    if not isinstance(root.value, dict):
        raise _no_configuration("a single value")
    if key := _around(root):
        inner = root.get(key)
        document = _survey(inner) if inner and inner.members else Document((), None, ())
        return Document(document.servers, document.inputs, document.left_out + _others(root, key))
    wrapped = [name for name in WRAPPERS if _is_wrapper(root.get(name))]
    if wrapped:
        found = [each for name in wrapped if (node := root.get(name)) for each in _inside(node)]
        return Document(tuple(found), root.get("inputs"), _others(root, *wrapped))
    if _is_server(root):
        return Document((Found(_name_in(root), root.line, root),), root.get("inputs"), ())
    if root.members and not any(isinstance(node.value, dict) for _, _, node in root.members):
        raise _no_configuration("no server")
    return Document(tuple(_inside(root)), root.get("inputs"), ())


def _around(root: Node) -> str:
    """Return the member that holds all of it, or "".

    VS Code and others keep the servers under `mcp` in their settings, some under `tools`.
    """
    inner = root.get("mcp")
    if inner is not None and isinstance(inner.value, dict) and not _is_server(inner):
        return "mcp"
    inner = root.get("tools")
    if inner is not None and any(_is_wrapper(inner.get(name)) for name in WRAPPERS):
        return "tools"
    return ""


def _inside(node: Node) -> Iterator[Found]:
    if isinstance(node.value, list):
        yield from _listed(node)
        return
    for name, line, value in node.members:
        if name not in _BESIDE:
            yield Found(name, line, value)


def _listed(node: Node) -> Iterator[Found]:
    for item in node.items:
        yield Found(_name_in(item), item.line, item)


def _name_in(node: Node) -> str | None:
    named = node.get("name")
    return named.value if named is not None and isinstance(named.value, str) else None


def _is_wrapper(node: Node | None) -> bool:
    return node is not None and isinstance(node.value, dict | list) and not _is_server(node)


def _is_server(node: Node) -> bool:
    """Tell whether an object describes a server itself; a map may name a server `url`, too."""
    for mark in _MARKS:
        member = node.get(mark)
        if member is None:
            continue
        if isinstance(member.value, dict) == (mark == "endpoint_config"):
            return True
    return False


def _others(root: Node, *taken: str) -> tuple[str, ...]:
    names = (name for name, _, _ in root.members if name not in taken and name not in _BESIDE)
    return tuple(dict.fromkeys(visible(name, 64) for name in names))


def _no_configuration(what: str) -> Invalid:
    return Invalid(
        say("The text can be read, but holds {what}.", what=what),
        code="not_a_configuration",
        remedy='Paste servers by name: {"name": {"url": "https://…"}} or {"name": {"command": …}}.',
    )
