"""The catalog of built-in tools, the tools of an agent, and how one is run."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agents.builtin_tools.extension_points import build_source_tool
from agents.builtin_tools.toolset_options import AgentToolsets, build_toolbox
from agents.builtin_tools.toolsets import fetch, filesystem, git, search_files, shell
from agents.builtin_tools.toolsets.default_tools import DEFAULT_TOOLS
from agents.builtin_tools.toolsets.find_tools import FIND_TOOLS_TOOL
from agents.builtin_tools.toolsets.notes import NOTE_TOOLS
from agents.builtin_tools.types import AgentBuiltinTool, BuiltinTool, BuiltinToolContext
from agents.flow_labels.services import label_workspace, list_current_labels
from agents.flow_labels.text_labels import list_skill_labels
from agents.models import Agent, AgentAssignment
from agents.policies.decisions import EffectivePolicy, ToolFacts
from agents.skills import SkillTemplate, build_template
from bonobot.core.runtime import get_runtime
from mcp_servers.flow_labels import FlowLabel, encode_labels
from mcp_servers.flow_labels.token_labels import HELD_LABELS

BUILTIN_TOOLS: dict[str, BuiltinTool] = {
    tool.name: tool
    for tool in (
        FIND_TOOLS_TOOL,
        *DEFAULT_TOOLS,
        *NOTE_TOOLS,
        *filesystem.FILESYSTEM_TOOLS,
        *filesystem.EDIT_TOOLS,
        *search_files.SEARCH_TOOLS,
        *git.GIT_TOOLS,
        *shell.SHELL_TOOLS,
        *fetch.FETCH_TOOLS,
    )
}


@dataclass(frozen=True, slots=True)
class BuiltinToolAvailability:
    """What an agent has; `has_many_tools`: more tools than are shown to its model at once."""

    has_resources: bool
    has_skills: bool
    has_many_tools: bool
    toolbox: AgentToolsets

    def is_available(self, tool: BuiltinTool) -> bool:
        return (
            (self.has_resources or not tool.needs_resources)
            and (self.has_skills or not tool.needs_skills)
            and (self.has_many_tools or not tool.needs_many_tools)
        )


@dataclass(frozen=True, slots=True)
class BuiltinToolCatalog:
    """An agent's built-in tools, skills, callable agents and workflows."""

    assignments: Sequence[AgentAssignment]
    skills: Mapping[str, SkillTemplate]
    toolbox: AgentToolsets
    _has_resources: bool
    _tool_search_above: int
    # Labels of the skills' texts, which tools that return skills add.
    _skill_labels: tuple[FlowLabel, ...] = ()

    def iterate_tools(self, server_tool_count: int) -> Iterator[AgentBuiltinTool]:
        """Yield the built-in tools of an agent that has this many tools of servers."""
        availability = BuiltinToolAvailability(
            has_resources=self._has_resources,
            has_skills=bool(self.skills),
            toolbox=self.toolbox,
            has_many_tools=0 < self._tool_search_above < server_tool_count,
        )
        for tool in BUILTIN_TOOLS.values():
            if availability.is_available(tool):
                agent_tool = build_agent_tool(tool, self.toolbox)
                if tool.needs_skills and self._skill_labels:
                    labels = dict.fromkeys((*agent_tool.labels, *self._skill_labels))
                    agent_tool = replace(agent_tool, labels=tuple(labels))
                yield agent_tool
        for assignment in self.assignments:
            if assignment.callable_agent:
                yield build_source_tool("agent", assignment.callable_agent)
            elif assignment.workflow:
                yield build_source_tool("workflow", assignment.workflow)


def load_builtin_tools(agent: Agent, effective_policy: EffectivePolicy) -> BuiltinToolCatalog:
    """Load an agent's built-in tools, skills, callable agents and workflows (queries)."""
    assignments = list(agent.assignments.select_related("skill", "callable_agent", "workflow"))
    rows = [row.skill for row in assignments if row.skill and row.skill.enabled]
    skills = [build_template(skill) for skill in rows]
    return BuiltinToolCatalog(
        assignments,
        skills={skill.name: skill for skill in sorted(skills, key=lambda item: item.name)},
        toolbox=build_toolbox(agent),
        _has_resources=any(scope.resources for scope in effective_policy.scopes.values()),
        _tool_search_above=agent.tool_search_above,
        _skill_labels=list_skill_labels(agent.organization_id, [skill.pk for skill in rows]),
    )


def build_agent_tool(tool: BuiltinTool, toolbox: AgentToolsets) -> AgentBuiltinTool:
    """Return a built-in tool with the facts and labels it has for an agent with this toolbox."""
    facts = ToolFacts(
        source="builtin",
        own_name=tool.name,
        label=tool.name,
        toolset=tool.toolset,
        granted=tool.is_granted(toolbox),
    )
    return AgentBuiltinTool(tool, facts, tool.list_labels(toolbox))


async def run_builtin_tool(
    tool: BuiltinTool, context: BuiltinToolContext, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Return the tool's result as an MCP result; raises `Problem`."""
    if tool.writes_workspace:
        result = await _run_workspace_writer(tool, context, arguments)
    else:
        result = await tool.run(context, arguments)
    return {"content": [{"type": "text", "text": result}]} if isinstance(result, str) else result


async def _run_workspace_writer(
    tool: BuiltinTool, context: BuiltinToolContext, arguments: dict[str, Any]
) -> Any:
    """Label the workspace before the tool writes to it, and again afterwards.

    A reviewer who clears the labels, or loads the page to do so, while the tool runs may not have
    seen all that it wrote.
    """
    run_orm = get_runtime().run_orm
    is_labeled = await run_orm(_save_workspace_labels, context)
    try:
        return await tool.run(context, arguments)
    finally:
        if is_labeled:
            await asyncio.shield(run_orm(_save_workspace_labels, context))


def _save_workspace_labels(context: BuiltinToolContext) -> bool:
    """Add the session's flow labels to the workspace; return whether it has any.

    Files outlive the session: without this, private data that one session wrote could be read from
    the workspace and sent out by another.
    """
    current_labels = list_current_labels(
        context.principal, session_id=context.label_session_id, agent_id=context.agent_id
    )
    labels = encode_labels(current_labels) & HELD_LABELS
    if context.agent_id is None or not labels:
        return False
    label_workspace(context.principal, context.agent_id, labels)
    return True
