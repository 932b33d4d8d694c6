"""Read `server.json` files and lists of MCP registries as VS Code configurations. Pure.

A server is reached at its first remote with a known transport; without one, its first package with
a known launcher is started. Its inputs become parameters, which no other server of the file
shares. Texts of a registry are written by strangers, so references such as `${HOME}` in them are
never expanded: references to inputs are written with a mark, and `${` of the whole configuration
becomes `{` before the marks are replaced.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bonobot.core.text.json_reader import SourceNode

REMOTE_TYPES = ("streamable-http", "sse")
# The launcher, the arguments before the package, and how its version is written.
LAUNCHERS: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "npm": ("npx", ("-y",), "@"),
    "pypi": ("uvx", (), "=="),
    "oci": ("docker", ("run", "-i", "--rm"), ":"),
    "nuget": ("dnx", ("--yes",), "@"),
}
_VARIABLE = re.compile(r"\{([^{}]+)\}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_]+")
# In place of the `$` of a reference to an input; removed from the texts of a file.
_MARK = "\ue000"
_REFERENCE = re.compile(r"\$+(?=\{)")
Json = dict[str, Any]


def convert_registry_file(root: SourceNode) -> SourceNode:
    """Return the same servers as VS Code writes them; other files unchanged."""
    entries = list(_list_entries(root))
    if not entries:
        return root
    names = _choose_names([str(entry.to_python()["name"]) for entry in entries])
    inputs: dict[str, Json] = {}
    servers = tuple(
        (name, entry.line, _build_node(_convert_entry(entry, name, inputs), entry.line))
        for name, entry in zip(names, entries, strict=True)
    )
    converted = SourceNode(dict.fromkeys(names), root.line, servers)
    fields = (
        ("inputs", root.line, _build_node(list(inputs.values()), root.line)),
        ("servers", root.line, converted),
    )
    return SourceNode({"inputs": None, "servers": None}, root.line, fields)


def is_registry_file(root: SourceNode) -> bool:
    """Tell whether a file is a `server.json` or a registry's response."""
    return next(_list_entries(root), None) is not None


def _list_entries(root: SourceNode) -> Iterator[SourceNode]:
    """Yield the servers of a file, of one version, or of a list."""
    servers = root.get("servers")
    if servers is not None and isinstance(servers.value, list):
        for item in servers.items:
            yield from _list_entries(item)
        return
    server = root.get("server")
    node = server if server is not None and isinstance(server.value, dict) else root
    name = node.get("name")
    has_endpoint = any(
        (child := node.get(key)) is not None and isinstance(child.value, list)
        for key in ("remotes", "packages")
    )
    if has_endpoint and name is not None and isinstance(name.value, str):
        yield node


def _choose_names(full_names: Sequence[str]) -> list[str]:
    """Return the parts after the namespace, or the full names where these aren't unique."""
    short_names = [name.rpartition("/")[2].replace(".", "-") for name in full_names]
    return [
        short if short_names.count(short) == 1 else _UNSAFE.sub("-", full)
        for short, full in zip(short_names, full_names, strict=True)
    ]


def _convert_entry(entry: SourceNode, name: str, inputs: dict[str, Json]) -> Json:
    """Return the configuration, in which only references to the entry's own inputs are left."""
    server = _replace_texts(entry.to_python(), lambda text: text.replace(_MARK, ""))
    reader = _InputReader(_UNSAFE.sub("_", name).upper(), inputs)
    config: Json = _replace_texts(
        _convert_server(server, reader),
        lambda text: _REFERENCE.sub("", text).replace(_MARK, "$"),
    )
    return config


def _convert_server(server: Json, reader: "_InputReader") -> Json:
    """Return the configuration; one without an endpoint if there is nothing usable."""
    for remote in _list_objects(server.get("remotes")):
        if remote.get("type") in REMOTE_TYPES:
            return _convert_remote(remote, reader)
    for package in _list_objects(server.get("packages")):
        transport = package.get("transport")
        is_stdio = not isinstance(transport, dict) or transport.get("type") == "stdio"
        if is_stdio and package.get("registryType") in LAUNCHERS:
            return _convert_package(package, reader)
    return {}


def _replace_texts(value: Any, replace_text: Callable[[str], str]) -> Any:
    """Return a value with all of its texts replaced, also the names of fields."""
    if isinstance(value, dict):
        return {
            replace_text(name): _replace_texts(item, replace_text) for name, item in value.items()
        }
    if isinstance(value, list):
        return [_replace_texts(item, replace_text) for item in value]
    return replace_text(value) if isinstance(value, str) else value


class _InputReader:
    """Writes a server's inputs as texts with references, and collects the referenced inputs."""

    def __init__(self, prefix: str, inputs: dict[str, Json]) -> None:
        self._prefix, self._inputs = prefix, inputs
        self._others_keys = frozenset(inputs)

    def read_text(self, field: Json, name: str) -> str:
        """Return the value of a field, with a reference where a person must fill something in."""
        variables = field.get("variables")
        value = field.get("value")
        if not isinstance(value, str):
            return self.refer(name, field)
        return self.fill_variables(value, variables if isinstance(variables, dict) else {})

    def fill_variables(self, text: str, variables: Json) -> str:
        """Return a text with references for its `{variables}`."""
        parts = _VARIABLE.split(_REFERENCE.sub("", text))
        return "".join(
            self.refer(part, variables[part])
            if index % 2 and isinstance(variables.get(part), dict)
            else f"{{{part}}}"
            if index % 2
            else part
            for index, part in enumerate(parts)
        )

    def refer(self, name: str, field: Json) -> str:
        """Return a fixed value, or a reference to an input."""
        if isinstance(field.get("value"), str):
            return str(field["value"])
        key = self._build_key(name)
        label = field.get("description")
        self._inputs[key] = {
            "type": "promptString",
            "id": key,
            "description": label if isinstance(label, str) and label else name,
            "password": field.get("isSecret") is True,
        }
        default = field.get("default")
        if isinstance(default, str) and default and "}" not in default:
            return f"{_MARK}{{{key}:-{default.replace('$', '')}}}"
        return f"{_MARK}{{{key}}}"

    def _build_key(self, name: str) -> str:
        """Return the name of an input that no other server uses: its value may be a secret."""
        base = f"{self._prefix}_{_UNSAFE.sub('_', name).strip('_').upper()}"
        key = base = base if base[:1].isalpha() else f"S_{base}"
        number = 1
        while key in self._others_keys:
            number += 1
            key = f"{base}_{number}"
        return key

    def read_pairs(self, fields: Any) -> dict[str, str]:
        """Return headers or environment variables, without optional ones that have no value."""
        return {
            str(field["name"]): self.read_text(field, str(field["name"]))
            for field in _list_objects(fields)
            if isinstance(field.get("name"), str) and _is_needed(field)
        }

    def read_arguments(self, fields: Any) -> list[str]:
        """Return command-line arguments, without optional ones that have no value."""
        arguments: list[str] = []
        for field in _list_objects(fields):
            is_named = field.get("type") == "named"
            name = str(field.get("name") or field.get("valueHint") or "argument")
            has_value = any(key in field for key in ("value", "default", "valueHint", "isRequired"))
            if is_named and not has_value:
                arguments.append(name)
            elif _is_needed(field):
                arguments += [name] * is_named + [self.read_text(field, name)]
        return arguments


def _convert_remote(remote: Json, reader: _InputReader) -> Json:
    variables = remote.get("variables")
    url = str(remote.get("url", ""))
    config: Json = {
        "type": "sse" if remote["type"] == "sse" else "http",
        "url": reader.fill_variables(url, variables if isinstance(variables, dict) else {}),
    }
    headers = reader.read_pairs(remote.get("headers"))
    return config | ({"headers": headers} if headers else {})


def _convert_package(package: Json, reader: _InputReader) -> Json:
    command, options, separator = LAUNCHERS[str(package["registryType"])]
    identifier, version = str(package.get("identifier", "")), package.get("version")
    has_version = package["registryType"] == "oci" and ":" in identifier.rpartition("/")[2]
    if isinstance(version, str) and version and not has_version:
        identifier += separator + version
    env = reader.read_pairs(package.get("environmentVariables"))
    if command == "docker":
        options = (*options, *(word for name in env for word in ("-e", name)))
    arguments = [
        *options,
        *reader.read_arguments(package.get("runtimeArguments")),
        identifier,
        *reader.read_arguments(package.get("packageArguments")),
    ]
    return {"command": command, "args": arguments} | ({"env": env} if env else {})


def _is_needed(field: Json) -> bool:
    """Tell whether a field has a value or must get one."""
    return any(isinstance(field.get(key), str) for key in ("value", "default")) or bool(
        field.get("isRequired")
    )


def _list_objects(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _build_node(value: Any, line: int) -> SourceNode:
    if isinstance(value, dict):
        fields = tuple((name, line, _build_node(item, line)) for name, item in value.items())
        return SourceNode(value, line, fields)
    if isinstance(value, list):
        return SourceNode(value, line, items=tuple(_build_node(item, line) for item in value))
    return SourceNode(value, line)
