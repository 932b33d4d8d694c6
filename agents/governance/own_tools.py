"""Our own tools, as an agent has them: built-in ones, and what people gave it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agents.builtin_tools import BUILTIN_TOOLS, BuiltinTool
from agents.builtin_tools.having import Having
from agents.governance.kits import Toolbox
from agents.governance.policies import Ruling, ToolFacts
from agents.models import Agent, Given
from agents.skills.rendering import SkillText, text_of
from agents.toolboxes import toolbox_of

# Tools that start sessions lie above the call pipeline: `AgentsConfig.ready` registers them.
_TOOL_SOURCES: dict[str, Callable[[Any], BuiltinTool]] = {}


def register_tool_source(
    kind: Literal["agent", "workflow"], build_tool: Callable[[Any], BuiltinTool]
) -> None:
    """Register what builds the tool of a callable agent or of an attached workflow."""
    _TOOL_SOURCES[kind] = build_tool


@dataclass(frozen=True, slots=True)
class OwnTool:
    """One of our own tools with the facts that are decided on."""

    tool: BuiltinTool
    facts: ToolFacts
    labels: tuple[str, ...]
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Own:
    """What an agent has of ours: built-in tools, skills, agents that it may ask, workflows."""

    given: Sequence[Given]
    skills: Mapping[str, SkillText]
    toolbox: Toolbox
    _resources: bool
    _many_above: int

    def tools(self, offered: int) -> Iterator[OwnTool]:
        """Yield our own tools for an agent that is offered so many tools of servers."""
        has = Having(
            resources=self._resources,
            skills=bool(self.skills),
            toolbox=self.toolbox,
            many=0 < self._many_above < offered,
        )
        for tool in BUILTIN_TOOLS.values():
            if has.uses(tool):
                yield _ours(tool, self.toolbox)
        for one in self.given:
            if one.callee:
                yield _ours(_TOOL_SOURCES["agent"](one.callee), self.toolbox)
            elif one.workflow:
                tool, row = _TOOL_SOURCES["workflow"](one.workflow), one.workflow
                facts = ToolFacts(
                    source="builtin",
                    own_name=tool.name,
                    label=tool.name,
                    state=row.state,
                    enabled=row.enabled,
                )
                yield OwnTool(tool, facts, tool.labels, row.digest)


def own_of(agent: Agent, ruling: Ruling) -> Own:
    """Read what an agent has of ours (queries)."""
    given = list(agent.given.select_related("skill", "callee", "workflow"))
    skills = [text_of(one.skill) for one in given if one.skill and one.skill.enabled]
    return Own(
        given,
        {skill.name: skill for skill in sorted(skills, key=lambda one: one.name)},
        toolbox_of(agent),
        any(scope.resources for scope in ruling.scopes.values()),
        agent.tool_search_above,
    )


def _ours(tool: BuiltinTool, toolbox: Toolbox) -> OwnTool:
    facts = ToolFacts(
        source="builtin",
        own_name=tool.name,
        label=tool.name,
        kit=tool.kit,
        granted=tool.granted(toolbox),
    )
    return OwnTool(tool, facts, tool.labels_in(toolbox))
