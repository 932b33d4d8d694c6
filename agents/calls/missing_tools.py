"""Find rules for tools that don't exist."""

from collections.abc import Iterator

from agents.builtin_tools.extension_points import build_source_tool
from agents.builtin_tools.registry import BUILTIN_TOOLS
from agents.builtin_tools.toolsets.find_tools import CATALOG_TOOLS
from agents.calls.snapshots import get_snapshot_cache
from agents.models import Agent, Workflow
from agents.policies.services import Owner, PolicySpec, list_unmatched_rules
from bonobot.core.i18n.messages import format_message
from bonobot.core.text.untrusted_text import make_visible


def list_missing_tools(owner: Owner, policy: PolicySpec) -> list[str]:
    """Return the names in a policy that name no tool, in the order of the rules.

    Patterns and names of servers that declared no tools yet aren't checked.
    """
    if not any((policy.allow, policy.ask, policy.deny)):
        return []
    return list(dict.fromkeys(list_unmatched_rules(owner, policy, {*_list_other_tools(owner)})))


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
        yield build_source_tool("agent", agent).name
    for workflow in Workflow.objects.for_organization(owner.pk):
        yield build_source_tool("workflow", workflow).name
