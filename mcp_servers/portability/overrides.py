"""What a file says beside how to reach its servers: tools to keep to, and what each bot gets.

The shape is `allowed_tools` at a server and `bot_overrides` beside the servers: per bot
`additional_servers`, `removed_servers` and `tool_permissions` (`allowed`, `denied`) by server.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from bonobot.lib.problems import Invalid, Problem
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from mcp_servers.notices import Notice
from mcp_servers.portability.reader import Node, read
from mcp_servers.portability.shapes import survey
from mcp_servers.portability.yaml_reader import is_yaml, read_yaml

# Members that are read here, and therefore not left out by who uses this module.
TAKEN_OVER = frozenset(("allowed_tools", "bot_overrides", "sampling_budget_tokens"))
_OF_BOTS = ("additional_servers", "removed_servers", "tool_permissions")


@dataclass(frozen=True)
class Share:
    """How much of one server a bot gets: globs over the server's own tool names."""

    server: str
    line: int
    removed: bool = False
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()


@dataclass(frozen=True)
class Override:
    """What the file says about one bot."""

    agent: str
    line: int
    shares: tuple[Share, ...] = ()


@dataclass(frozen=True)
class Wishes:
    """Everything beside the servers: tools by server, bots, and what is wrong or unsupported."""

    only_tools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    overrides: tuple[Override, ...] = ()
    problems: tuple[Problem, ...] = ()
    notices: tuple[Notice, ...] = ()


def wishes(text: str) -> Wishes:
    """Return what a text says beside its servers; raises `Invalid` as `parse` does."""
    root = (read_yaml(text) if is_yaml(text) else read(text)).root
    reader = _Wishing()
    only: dict[str, tuple[str, ...]] = {}
    for found in survey(root).servers:
        name = found.name or ""
        if found.node.get("allowed_tools") is not None:
            only[name] = reader.names(found.node, "allowed_tools", f"{name}.allowed_tools")
        if found.node.get("sampling_budget_tokens") is not None:
            reader.notices.append(
                Notice(
                    "not_supported_yet",
                    say(
                        "Servers can't ask for completions yet: the sampling budget of "
                        "`{name}` was left out.",
                        name=name,
                    ),
                    f"{name}.sampling_budget_tokens",
                )
            )
    overrides = tuple(reader.overrides(root.get("bot_overrides"), only))
    return Wishes(only, overrides, tuple(reader.problems), tuple(reader.notices))


class _Wishing:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.notices: list[Notice] = []

    def overrides(
        self, node: Node | None, only: Mapping[str, tuple[str, ...]]
    ) -> Iterator[Override]:
        for agent, line, value in self._members(node, "bot_overrides"):
            where = f"bot_overrides.{visible(agent, 64)}"
            members = {name: found for name, _, found in self._members(value, where)}
            if left := [visible(name, 64) for name in members if name not in _OF_BOTS]:
                self.notices.append(
                    Notice("left_out", say("Not taken over: {left}.", left=left[0]), where)
                )
            shares = self._shares(value, members.get("tool_permissions"), only, where)
            yield Override(agent, line, tuple(shares))

    def _shares(
        self,
        bot: Node,
        permissions: Node | None,
        only: Mapping[str, tuple[str, ...]],
        where: str,
    ) -> Iterator[Share]:
        removed = self.names(bot, "removed_servers", f"{where}.removed_servers")
        for server in removed:
            yield Share(server, bot.line, removed=True)
        spot = f"{where}.tool_permissions"
        named = {name: found for name, _, found in self._members(permissions, spot)}
        added = self.names(bot, "additional_servers", f"{where}.additional_servers")
        for server in dict.fromkeys((*added, *named)):
            if server in removed:
                self._refuse(
                    say("`{server}` is both removed and given.", server=server),
                    f"{where}",
                    bot.line,
                )
                continue
            node = named.get(server, Node({}, bot.line))
            at = f"{spot}.{visible(server, 64)}"
            allowed = self.names(node, "allowed", f"{at}.allowed") or only.get(server, ())
            yield Share(
                server,
                node.line,
                allowed=allowed,
                denied=self.names(node, "denied", f"{at}.denied"),
            )

    def names(self, node: Node, member: str, where: str) -> tuple[str, ...]:
        """Return a list of texts; anything else is a problem."""
        found = node.get(member)
        if found is None or found.value is None:
            return ()
        listed = found.plain()
        if isinstance(listed, list) and all(isinstance(one, str) and one for one in listed):
            return tuple(dict.fromkeys(listed))
        self._refuse(say("`{where}` must be a list of names.", where=where), where, found.line)
        return ()

    def _members(self, node: Node | None, where: str) -> tuple[tuple[str, int, Node], ...]:
        if node is None or node.value is None:
            return ()
        if not isinstance(node.value, dict):
            self._refuse(say("`{where}` must be an object.", where=where), where, node.line)
        return node.members

    def _refuse(self, detail: str, where: str, line: int) -> None:
        remedy = "Correct it, or leave this part away."
        self.problems.append(
            Invalid(detail, code="bad_value", field=where, remedy=remedy, extra={"line": line})
        )
