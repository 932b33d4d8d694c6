"""Parse per-agent overrides in an imported file.

Servers may have `allowed_tools`. `bot_overrides` next to the servers has, for each bot,
`additional_servers`, `removed_servers` and `tool_permissions` (`allowed`, `denied`) by server.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import ConfigWarning, InvalidInput, Problem
from bonobot.core.text.json_reader import SourceNode, read_json
from bonobot.core.text.untrusted_text import make_visible
from bonobot.core.text.yaml_reader import is_yaml, read_yaml
from mcp_servers.import_export.detect_format import detect_servers

# Fields that are parsed here; callers pass them as known fields.
OVERRIDE_FIELDS = frozenset(("allowed_tools", "bot_overrides"))
_BOT_FIELDS = ("additional_servers", "removed_servers", "tool_permissions")


@dataclass(frozen=True)
class AgentServerOverride:
    """The tools of one server for a bot, as globs over the server's own tool names."""

    server: str
    line: int
    removed: bool = False
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()


@dataclass(frozen=True)
class AgentOverride:
    """The overrides of one bot."""

    agent: str
    line: int
    server_overrides: tuple[AgentServerOverride, ...] = ()


@dataclass(frozen=True)
class ImportOverrides:
    """Tools by server, overrides by bot, problems and notices of a file."""

    only_tools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    overrides: tuple[AgentOverride, ...] = ()
    problems: tuple[Problem, ...] = ()
    notices: tuple[ConfigWarning, ...] = ()


def parse_overrides(text: str) -> ImportOverrides:
    """Return the overrides in a text; raises `InvalidInput` as `parse_import`."""
    root = (read_yaml(text) if is_yaml(text) else read_json(text)).root
    return read_overrides(root)


def read_overrides(root: SourceNode) -> ImportOverrides:
    """Return the overrides in a parsed document."""
    reader = _OverrideReader()
    only_tools: dict[str, tuple[str, ...]] = {}
    for server_node in detect_servers(root).servers:
        name = server_node.name or ""
        if server_node.node.get("allowed_tools") is not None:
            only_tools[name] = reader.read_names(
                server_node.node, "allowed_tools", f"{name}.allowed_tools"
            )
    overrides = tuple(reader.read_agent_overrides(root.get("bot_overrides"), only_tools))
    return ImportOverrides(only_tools, overrides, tuple(reader.problems), tuple(reader.notices))


class _OverrideReader:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.notices: list[ConfigWarning] = []

    def read_agent_overrides(
        self, node: SourceNode | None, only_tools: Mapping[str, tuple[str, ...]]
    ) -> Iterator[AgentOverride]:
        for agent, line, value in self._read_fields(node, "bot_overrides"):
            path = f"bot_overrides.{make_visible(agent, 64)}"
            fields = {name: child for name, _, child in self._read_fields(value, path)}
            if unused_names := [
                make_visible(name, 64) for name in fields if name not in _BOT_FIELDS
            ]:
                self.notices.append(
                    ConfigWarning(
                        "left_out",
                        format_message("Ignored: {listed}.", listed=unused_names[0]),
                        path,
                    )
                )
            server_overrides = self._read_server_overrides(
                value, fields.get("tool_permissions"), only_tools, path
            )
            yield AgentOverride(agent, line, tuple(server_overrides))

    def _read_server_overrides(
        self,
        bot: SourceNode,
        permissions: SourceNode | None,
        only_tools: Mapping[str, tuple[str, ...]],
        path: str,
    ) -> Iterator[AgentServerOverride]:
        removed_servers = self.read_names(bot, "removed_servers", f"{path}.removed_servers")
        for server in removed_servers:
            yield AgentServerOverride(server, bot.line, removed=True)
        permissions_path = f"{path}.tool_permissions"
        permissions_by_server = {
            name: child for name, _, child in self._read_fields(permissions, permissions_path)
        }
        additional_servers = self.read_names(
            bot, "additional_servers", f"{path}.additional_servers"
        )
        for server in dict.fromkeys((*additional_servers, *permissions_by_server)):
            if server in removed_servers:
                self._add_problem(
                    format_message("`{server}` is both added and removed.", server=server),
                    f"{path}",
                    bot.line,
                )
                continue
            node = permissions_by_server.get(server, SourceNode({}, bot.line))
            server_path = f"{permissions_path}.{make_visible(server, 64)}"
            allowed_tools = self.read_names(
                node, "allowed", f"{server_path}.allowed"
            ) or only_tools.get(server, ())
            yield AgentServerOverride(
                server,
                node.line,
                allowed=allowed_tools,
                denied=self.read_names(node, "denied", f"{server_path}.denied"),
            )

    def read_names(self, node: SourceNode, field_name: str, path: str) -> tuple[str, ...]:
        """Return a list of names; anything else is a problem."""
        child = node.get(field_name)
        if child is None or child.value is None:
            return ()
        values = child.to_python()
        if isinstance(values, list) and all(isinstance(item, str) and item for item in values):
            return tuple(dict.fromkeys(values))
        self._add_problem(
            format_message("`{where}` must be a list of names.", where=path), path, child.line
        )
        return ()

    def _read_fields(
        self, node: SourceNode | None, path: str
    ) -> tuple[tuple[str, int, SourceNode], ...]:
        if node is None or node.value is None:
            return ()
        if not isinstance(node.value, dict):
            self._add_problem(
                format_message("`{field}` must be an object.", field=path), path, node.line
            )
        return node.fields

    def _add_problem(self, detail: str, path: str, line: int) -> None:
        remedy = "Correct it, or omit this part."
        self.problems.append(
            InvalidInput(detail, code="bad_value", field=path, remedy=remedy, extra={"line": line})
        )
