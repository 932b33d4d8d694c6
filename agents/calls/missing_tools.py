"""Find rules for tools that don't exist."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from uuid import UUID

from agents.builtin_tools.extension_points import build_source_tool
from agents.builtin_tools.registry import BUILTIN_TOOLS
from agents.builtin_tools.toolsets.find_tools import CATALOG_TOOLS
from agents.calls.snapshots import get_snapshot_cache
from agents.models import Agent, ToolRule, Workflow
from agents.policies.services import Owner, PolicySpec, build_all_rules, format_rule, map_tool_names
from bonobot.core.i18n.messages import format_message
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.models import Definition
from mcp_servers.tool_names import (
    fold_own_name,
    is_exact_pattern,
)


def list_missing_tools(owner: Owner, policy: PolicySpec) -> list[str]:
    """Return the names in a policy that name no tool, in the order of the rules.

    Patterns and names of servers that declared no tools yet aren't checked.
    """
    if not any((policy.allow, policy.ask, policy.deny)):
        return []
    return list(dict.fromkeys(_list_unmatched_rules(owner, policy, {*_list_other_tools(owner)})))


def describe_missing_tool(name: str) -> str:
    """Return the warning for a name of `list_missing_tools`."""
    return format_message(
        "There is no tool `{name}`. Its rule has no effect yet.", name=make_visible(name, 100)
    )


def _list_other_tools(owner: Owner) -> Iterator[str]:
    """Yield the names of the tools that don't belong to servers."""
    yield from BUILTIN_TOOLS
    yield from CATALOG_TOOLS
    if isinstance(owner, Agent):
        # Includes the tools of agents and workflows that the agent has.
        yield from get_snapshot_cache().load_current("agent", owner.pk).tools
        return
    for agent in Agent.objects.for_organization(owner.pk):
        yield build_source_tool("agent", agent).tool.name
    for workflow in Workflow.objects.for_organization(owner.pk):
        yield build_source_tool("workflow", workflow).tool.name


def _list_unmatched_rules(
    owner: Owner, spec: PolicySpec, builtin_names: Collection[str]
) -> list[str]:
    """Return the rules that match no tool, as people write them.

    Rules for servers that declared no tools yet, defaults, and rules with wildcards aren't checked.
    """
    rules = [
        rule
        for rule in build_all_rules(owner, spec)
        if rule.pattern and is_exact_pattern(rule.pattern)
    ]
    declared = defaultdict[UUID | None, set[str]](set)
    definitions = Definition.objects.tools().filter(server__in={rule.server_id for rule in rules})
    for server_id, name in definitions.filter(present=True).values_list("server_id", "name"):
        declared[server_id] |= {name, fold_own_name(name)}
    names = map_tool_names(owner)
    return [
        rule.pattern if rule.source == ToolRule.Source.BUILTIN else format_rule(rule, names)
        for rule in rules
        if rule.pattern
        not in (
            builtin_names
            if rule.source == ToolRule.Source.BUILTIN
            else declared.get(rule.server_id, {rule.pattern})
        )
    ]
