"""Make an entry of one server, in whatever words its client describes it."""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from bonobot.lib.egress import EgressDenied, check_url
from bonobot.lib.sayings import say
from bonobot.lib.secret_names import names_secret
from bonobot.lib.untrusted import visible
from mcp_servers.launchers import unpinned_package
from mcp_servers.naming import slugify
from mcp_servers.portability import apis, signing
from mcp_servers.portability.collecting import Collector, Labels
from mcp_servers.portability.entries import Entry
from mcp_servers.portability.reader import Node
from mcp_servers.portability.shapes import TRANSPORT_KEYS, URL_KEYS, Found
from mcp_servers.secret_values import SecretValue

Transport = Literal["stdio", "http", "openapi", ""]
Members = dict[str, Node]

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
    found: Found, values: Mapping[str, str], labels: Labels, taken_over: Collection[str] = ()
) -> Entry:
    """Return the entry of a server, with everything that is wrong with it.

    `values` fill its references; without them each is a parameter and a `missing_value`.
    `taken_over` are members that the caller understands.
    """
    collector = Collector(found.line, values, labels, slugify(found.name or "") or "server")
    members = _members(found.node, collector)
    transport = _transport(members, collector)
    endpoint: dict[str, Any] = {}
    secrets: tuple[SecretValue, ...] = ()
    sign_in = signing.SignIn()
    if transport == "stdio":
        endpoint, secrets = _stdio(members, collector)
    elif transport in ("http", "openapi"):
        endpoint, sign_in, secrets = _http(members, collector)
    if transport == "openapi":
        endpoint |= apis.of_api(members, collector)
    beyond = {name: node for name, node in members.items() if name not in taken_over}
    _tell_what_is_left_out(beyond, transport, collector)
    name = _name(found, endpoint, collector)
    return Entry(
        name=name,
        slug=slugify(name),
        line=found.line,
        transport_type=transport,
        endpoint_config=endpoint,
        auth_type=sign_in.type,
        auth_config=sign_in.config,
        secrets=(*secrets, *sign_in.secrets),
        enabled=_enabled(members, collector),
        parameters=tuple(collector.parameters.values()),
        problems=tuple(collector.problems),
        notices=tuple(collector.notices),
    )


def _members(node: Node, collector: Collector) -> Members:
    if not isinstance(node.value, dict):
        remedy = 'Write {"url": "https://…"} or {"command": …}.'
        collector.refuse("not_an_object", "A server must be an object.", "", remedy, node.line)
    members: Members = {}
    config = node.get("endpoint_config")
    for name, _, value in (*node.members, *(config.members if config else ())):
        if name in members:
            shown = visible(name, 64)
            collector.tell(
                "repeated_member",
                say("`{shown}` came twice; the last one counts.", shown=shown),
                shown,
            )
        members[name] = value
    return members


def _transport(members: Members, collector: Collector) -> Transport:
    said: Transport = ""
    for key in TRANSPORT_KEYS:
        node = members.get(key)
        if node is None or node.value is None:
            continue
        word = str(node.value).strip().lower().replace("_", "-")
        if word not in TRANSPORTS:
            shown = visible(str(node.value), 40) if isinstance(node.value, str) else "this"
            remedy = "Use `stdio`, `http`, `streamable_http`, `sse` or `openapi`."
            detail = say("There is no transport `{shown}`.", shown=shown)
            collector.refuse("unknown_transport", detail, "transport_type", remedy, node.line)
            return ""
        said = said or TRANSPORTS[word]
    found = {
        "http": next((key for key in URL_KEYS if key in members), ""),
        "stdio": "command" if "command" in members else "",
    }
    return _agreed(said, found["http"], found["stdio"], collector)


def _agreed(said: Transport, url: str, command: str, collector: Collector) -> Transport:
    """Return the transport that the description agrees on; "" when it doesn't."""
    if url and command and not said:
        detail = say("It has both `{url}` and `command`.", url=url)
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
        or say(
            "A server over {wanted} needs a `{missing}`, and has none.",
            wanted=wanted,
            missing=missing,
        ),
        missing,
        'Write "url": "https://…", or "command": "npx" with "args".',
    )
    return ""


def _stdio(
    members: Members, collector: Collector
) -> tuple[dict[str, Any], tuple[SecretValue, ...]]:
    command, args = _command(members, collector)
    endpoint: dict[str, Any] = {
        "command": collector.plain(command, "command"),
        "args": [collector.plain(arg, f"args[{i}]") for i, arg in enumerate(args)],
    }
    if (cwd := members.get("cwd")) is not None and cwd.value is not None:
        endpoint["cwd"] = collector.plain(collector.text(cwd, "cwd") or "", "cwd")
    if unpinned_package(endpoint["command"], endpoint["args"]):
        collector.tell("unpinned_version", "The package has no version; name one.", "args")
    if any(_names_secret_option(arg) for arg in args):
        collector.tell(
            "secret_in_arguments",
            "An argument looks like a secret; arguments are stored and shown openly. "
            "Use `env`, if the server can read it from there.",
            "args",
        )
    secrets = tuple(
        SecretValue("env", name, value)
        for name, text in collector.texts(members.get("env"), "env")
        # An empty variable is a value, too.
        if (value := collector.secret(text, f"env.{name}") if text else "") is not None
    )
    return endpoint, secrets


def _command(members: Members, collector: Collector) -> tuple[str, list[str]]:
    node = members["command"]
    args = _texts(members.get("args"), "args", collector)
    if isinstance(node.value, list):
        words = [*_texts(node, "command", collector), *args]
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


def _split(text: str, collector: Collector) -> list[str]:
    """Split a command line that was written as one text."""
    if not re.search(r"\s", text.strip()):
        return [text.strip()]
    try:
        return shlex.split(text)
    except ValueError:
        remedy = 'Write "command": "npx", "args": ["-y", "…"].'
        detail = "The command line has a quote that isn't closed."
        collector.refuse("bad_command", detail, "command", remedy)
        return [text]


def _texts(node: Node | None, field: str, collector: Collector) -> list[str]:
    if node is None or node.value is None:
        return []
    if not isinstance(node.value, list):
        remedy = 'Write each argument by itself: ["-y", "package@1.2.3"].'
        collector.refuse(
            "bad_value", say("`{field}` must be a list.", field=field), field, remedy, node.line
        )
        return []
    found = (collector.text(item, f"{field}[{i}]") for i, item in enumerate(node.items))
    return [text for text in found if text is not None]


def _http(
    members: Members, collector: Collector
) -> tuple[dict[str, Any], signing.SignIn, tuple[SecretValue, ...]]:
    key = next(key for key in URL_KEYS if key in members)
    url = collector.plain((collector.text(members[key], key) or "").strip(), "url")
    if "${" not in url:
        _check(url, collector)
    if any(names_secret(name) for name, _ in _query(url)):
        collector.tell(
            "secret_in_url",
            "The URL carries a secret; URLs are stored and shown openly. Use a header, if the "
            "server takes one.",
            "url",
        )
    sign_in = _said_sign_in(members, collector)
    headers = collector.texts(members.get("headers"), "headers")
    from_headers, secrets = signing.from_headers(
        headers, collector.secret, taken=sign_in.type != "none"
    )
    return {"url": url}, (from_headers if sign_in.type == "none" else sign_in), secrets


def _check(url: str, collector: Collector) -> None:
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


def _said_sign_in(members: Members, collector: Collector) -> signing.SignIn:
    where = "auth_config" if "auth_config" in members else "auth"
    node = members.get(where)
    if node is None or not isinstance(node.value, dict):
        return signing.SignIn()
    said = dict(collector.texts(_without_lists(node), where))
    kind = said.get("type", "none")
    if kind not in signing.AUTH_TYPES:
        detail = say("There is no sign-in `{kind}`.", kind=visible(kind, 40))
        remedy = say("Use one of: {auth_types}.", auth_types=", ".join(signing.AUTH_TYPES))
        collector.refuse(
            "unknown_auth", detail, say("{where}.type", where=where), remedy, node.line
        )
        return signing.SignIn()
    for name in signing.OAUTH_PUBLIC & said.keys():
        said[name] = collector.plain(said[name], f"{where}.{name}")
    return signing.from_members(kind, said, collector.secret, where)


def _without_lists(node: Node) -> Node:
    """Return an object whose lists of scopes are texts with blanks, as OAuth writes them."""
    members = []
    for name, line, value in node.members:
        if isinstance(value.value, list):
            words = " ".join(str(item.value) for item in value.items)
            members.append((name, line, Node(words, value.line)))
        elif name != "configured" and value.value is not None:
            members.append((name, line, value))
    return Node(node.value, node.line, members=tuple(members))


def _enabled(members: Members, collector: Collector) -> bool:
    enabled = True
    for name, on in (("enabled", True), ("disabled", False)):
        node = members.get(name)
        if node is None or node.value is None:
            continue
        if not isinstance(node.value, bool):
            detail = say("`{name}` must be true or false.", name=name)
            collector.refuse("bad_value", detail, name, "Write true or false.", node.line)
        elif node.value is not on:
            enabled = False
    return enabled


def _tell_what_is_left_out(members: Members, transport: Transport, collector: Collector) -> None:
    other = {"stdio": _OF_HTTP, "http": _OF_STDIO, "openapi": _OF_STDIO}.get(transport, frozenset())
    if transport == "stdio" and _no_sign_in(members):
        other -= _SIGN_IN
    known = (_OF_STDIO | _OF_HTTP | _OF_BOTH) - other
    if transport == "openapi":
        known |= apis.MEMBERS
    if left := [visible(name, 64) for name in members if name not in known]:
        listed = ", ".join(f"`{name}`" for name in left[:20])
        collector.tell("left_out", say("Not taken over: {listed}.", listed=listed))


def _no_sign_in(members: Members) -> bool:
    said = [node.get("type") for name, node in members.items() if name in _SIGN_IN]
    return all(kind is None or kind.value == "none" for kind in said)


def _name(found: Found, endpoint: Mapping[str, Any], collector: Collector) -> str:
    """Return the server's name; one that has none is named after where it is."""
    if found.name is not None:
        return found.name.strip()
    name = _host_name(endpoint.get("url", "")) or _package_name(endpoint.get("args", ()))
    if name:
        collector.tell(
            "named_by_import", say("It had no name and was called `{name}`.", name=name), "name"
        )
    return name


def _host_name(url: str) -> str:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return ""
    labels = [label for label in host.split(".") if label not in _SAYS_NOTHING]
    if not labels or host.replace(".", "").isdigit() or ":" in host:
        return ""
    return labels[-2] if len(labels) > 1 else labels[0]


def _package_name(args: Iterable[str]) -> str:
    package = next((arg for arg in args if re.fullmatch(r"@?[a-z][\w./@-]*", arg)), "")
    scope, _, name = re.sub(r"(?<=.)@.*", "", package).rpartition("/")
    return f"{scope.lstrip('@')}-{name}" if name in _SAYS_NOTHING and scope else name


def _names_secret_option(arg: str) -> bool:
    option, equals, value = arg.partition("=")
    if not option.startswith("-") or not names_secret(option.lstrip("-")):
        return False
    return not (equals and value.startswith("${"))
