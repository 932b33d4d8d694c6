"""The tools of a policy's table by server: what each comes to, and its rows, at once or when asked.

Rules that the page didn't show stay as they are; where one is chosen for a whole group, it holds
for the tools whose own rule wasn't posted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from django.utils.translation import gettext as _t

from agents.admin.ruling import Ruled
from agents.governance.snapshots import Tool
from agents.tool_policies import EFFECTS

SHOWN_AT_ONCE = 200  # rows; of more, each group brings its own when it is opened
NO_RULE = "none"
BUILT_IN = "builtin"


@dataclass(frozen=True)
class Group:
    """The tools of a server, or the built-in ones: how many hold what, and the rows that are here.

    `chosen` is the rule that was posted for all of them.
    """

    key: str
    title: str
    total: int
    allowed: int
    asked: int
    ruled: tuple[Ruled, ...]
    chosen: str = ""

    @property
    def folded(self) -> bool:
        """Whether its rows come when it is opened."""
        return not self.ruled

    @property
    def rest(self) -> int:
        """Return how many rows aren't here."""
        return self.total - len(self.ruled)


def key_of(tool: Tool) -> str:
    """Return the group that a tool belongs to."""
    return str(tool.facts.server_id or BUILT_IN)


def shown(tools: Sequence[Tool], posted: Mapping[str, Any]) -> list[Tool]:
    """Return the tools whose rows come with the page: a few all, of many those that were posted."""
    if len(tools) <= SHOWN_AT_ONCE:
        return list(tools)
    return [tool for tool in tools if f"rule-{tool.name}" in posted]


def groups(
    tools: Sequence[Tool], ruled: Sequence[Ruled], posted: Mapping[str, Any]
) -> tuple[Group, ...]:
    """Return sorted tools by group, each with those of its rows that are here."""
    return tuple(
        Group(
            key=key,
            title=several[0].facts.server_name or _t("Built in"),
            total=len(several),
            allowed=sum(tool.decision.allowed for tool in several),
            asked=sum(tool.decision.verdict == "ask" for tool in several),
            ruled=tuple(one for one in ruled if key_of(one.tool) == key),
            chosen=posted.get(f"all-{key}", ""),
        )
        for key, several in ((key, tuple(found)) for key, found in groupby(tools, key_of))
    )


def spread(tools: Sequence[Tool], posted: Mapping[str, Any]) -> dict[str, str]:
    """Return the rules that were chosen for whole groups, by the names of their tools."""
    said = {tool.name: posted.get(f"all-{key_of(tool)}", "") for tool in tools}
    return {
        name: "" if rule == NO_RULE else rule
        for name, rule in said.items()
        if rule in (*EFFECTS, NO_RULE)
    }
