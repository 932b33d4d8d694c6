"""Parse per-agent overrides in an imported file.

Servers may have `allowed_tools`. `bot_overrides` next to the servers has, for each bot,
`additional_servers`, `removed_servers` and `tool_permissions` (`allowed`, `denied`) by server.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import ConfigWarning, InvalidInput, Problem
from bonobot.core.text.json_reader import SourceNode, read
from bonobot.core.text.untrusted_text import make_visible
from bonobot.core.text.yaml_reader import is_yaml, read_yaml
from mcp_servers.import_export.detect_format import detect_servers

# Fields that are parsed here; callers pass them as known fields.
TAKEN_OVER = frozenset(("allowed_tools", "bot_overrides", "sampling_budget_tokens"))
_OF_BOTS = ("additional_servers", "removed_servers", "tool_permissions")


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
    shares: tuple[AgentServerOverride, ...] = ()


@dataclass(frozen=True)
class ImportOverrides:
    """Tools by server, overrides by bot, problems and notices of a file."""

    only_tools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    overrides: tuple[AgentOverride, ...] = ()
    problems: tuple[Problem, ...] = ()
    notices: tuple[ConfigWarning, ...] = ()


def parse_overrides(text: str) -> ImportOverrides:
    """Return the overrides in a text; raises `InvalidInput` as `parse_import`."""
    root = (read_yaml(text) if is_yaml(text) else read(text)).root
    reader = _OverrideReader()
    only: dict[str, tuple[str, ...]] = {}
    for found in detect_servers(root).servers:
        name = found.name or ""
        if found.node.get("allowed_tools") is not None:
            only[name] = reader.names(found.node, "allowed_tools", f"{name}.allowed_tools")
        if found.node.get("sampling_budget_tokens") is not None:
            reader.notices.append(
                ConfigWarning(
                    "not_supported_yet",
                    format_message(
                        "Servers can't ask for completions yet: the sampling budget of "
                        "`{name}` was left out.",
                        name=name,
                    ),
                    f"{name}.sampling_budget_tokens",
                )
            )
    overrides = tuple(reader.overrides(root.get("bot_overrides"), only))
    return ImportOverrides(only, overrides, tuple(reader.problems), tuple(reader.notices))


class _OverrideReader:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.notices: list[ConfigWarning] = []

    def overrides(
        self, node: SourceNode | None, only: Mapping[str, tuple[str, ...]]
    ) -> Iterator[AgentOverride]:
        for agent, line, value in self._members(node, "bot_overrides"):
            where = f"bot_overrides.{make_visible(agent, 64)}"
            members = {name: found for name, _, found in self._members(value, where)}
            if left := [make_visible(name, 64) for name in members if name not in _OF_BOTS]:
                self.notices.append(
                    ConfigWarning(
                        "left_out", format_message("Not taken over: {left}.", left=left[0]), where
                    )
                )
            shares = self._shares(value, members.get("tool_permissions"), only, where)
            yield AgentOverride(agent, line, tuple(shares))

    def _shares(
        self,
        bot: SourceNode,
        permissions: SourceNode | None,
        only: Mapping[str, tuple[str, ...]],
        where: str,
    ) -> Iterator[AgentServerOverride]:
        removed = self.names(bot, "removed_servers", f"{where}.removed_servers")
        for server in removed:
            yield AgentServerOverride(server, bot.line, removed=True)
        spot = f"{where}.tool_permissions"
        named = {name: found for name, _, found in self._members(permissions, spot)}
        added = self.names(bot, "additional_servers", f"{where}.additional_servers")
        for server in dict.fromkeys((*added, *named)):
            if server in removed:
                self._refuse(
                    format_message("`{server}` is both removed and given.", server=server),
                    f"{where}",
                    bot.line,
                )
                continue
            node = named.get(server, SourceNode({}, bot.line))
            at = f"{spot}.{make_visible(server, 64)}"
            allowed = self.names(node, "allowed", f"{at}.allowed") or only.get(server, ())
            yield AgentServerOverride(
                server,
                node.line,
                allowed=allowed,
                denied=self.names(node, "denied", f"{at}.denied"),
            )

    def names(self, node: SourceNode, member: str, where: str) -> tuple[str, ...]:
        """Return a list of names; anything else is a problem."""
        found = node.get(member)
        if found is None or found.value is None:
            return ()
        listed = found.plain()
        if isinstance(listed, list) and all(isinstance(one, str) and one for one in listed):
            return tuple(dict.fromkeys(listed))
        self._refuse(
            format_message("`{where}` must be a list of names.", where=where), where, found.line
        )
        return ()

    def _members(
        self, node: SourceNode | None, where: str
    ) -> tuple[tuple[str, int, SourceNode], ...]:
        if node is None or node.value is None:
            return ()
        if not isinstance(node.value, dict):
            self._refuse(
                format_message("`{where}` must be an object.", where=where), where, node.line
            )
        return node.members

    def _refuse(self, detail: str, where: str, line: int) -> None:
        remedy = "Correct it, or leave this part away."
        self.problems.append(
            InvalidInput(detail, code="bad_value", field=where, remedy=remedy, extra={"line": line})
        )
