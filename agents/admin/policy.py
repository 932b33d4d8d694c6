"""An agent's tool policy: the mode, and one table of all tools with what holds (A14)."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.governance.snapshots import Tool, snapshots
from agents.models import Agent, ToolPolicy
from agents.tool_policies import PolicyText, policy_text, set_policy
from bonobot.lib.problems import Problem
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit, onward

MODES = (
    (ToolPolicy.Mode.NONE, _("None"), _("Every tool is blocked.")),
    (ToolPolicy.Mode.ALLOWLIST, _("Allow list"), _("Only tools that a rule allows.")),
    (ToolPolicy.Mode.DENYLIST, _("Deny list"), _("All tools but those that a rule denies.")),
    (ToolPolicy.Mode.ALL, _("All"), _("Every approved tool of its servers.")),
)


@dataclass(frozen=True)
class Ruled:
    """A tool with the rule that names it, if one does, and what holds now."""

    tool: Tool
    rule: str

    @property
    def group(self) -> str:
        """Return whose tool it is."""
        return self.tool.facts.server_name or _t("Built in")


@dataclass(frozen=True)
class Draft:
    """The policy as the page shows it: rules of single tools, and patterns one on each line."""

    text: PolicyText
    ruled: tuple[Ruled, ...]
    allow: str
    deny: str


@AgentAdmin.add_page("policy", _("Policy"), order=40)
def policy(visit: Visit) -> HttpResponseBase:
    """Show the policy, or replace it."""
    agent: Agent = visit.object
    tools = _tools(agent)
    problem: Problem | None = None
    text = policy_text(agent)
    if visit.request.method == "POST":
        text = _posted(visit.request, tools)
        try:
            set_policy(visit.principal, agent, text)
        except Problem as refusal:
            problem = refusal
        else:
            messages.success(visit.request, _t("Saved. It holds on the very next call."))
            return onward(visit, "policy")
    return visit.show(
        "agents/policy.html",
        agent=agent,
        draft=_draft(text, tools),
        modes=MODES,
        problem=problem,
        allowed=sum(tool.decision.allowed for tool in tools),
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
        status=problem.status if problem else 200,
    )


def _tools(agent: Agent) -> list[Tool]:
    """Return the agent's tools, built-in ones last; those that are gone can't be ruled on."""
    found = snapshots().current("agent", agent.pk).tools.values()
    return sorted((tool for tool in found if tool.facts.state != "gone"), key=_order)


def _draft(text: PolicyText, tools: Sequence[Tool]) -> Draft:
    names = {tool.name for tool in tools}
    allow, deny = set(text.allow), set(text.deny)
    return Draft(
        text=text,
        ruled=tuple(
            Ruled(tool, "deny" if tool.name in deny else "allow" if tool.name in allow else "")
            for tool in tools
        ),
        allow="\n".join(name for name in text.allow if name not in names),
        deny="\n".join(name for name in text.deny if name not in names),
    )


def _order(tool: Tool) -> tuple[bool, str, str]:
    return tool.facts.source == "builtin", tool.facts.server_name, tool.name


def _posted(request: HttpRequest, tools: Sequence[Tool]) -> PolicyText:
    posted = request.POST
    rules = {tool.name: posted.get(f"rule-{tool.name}", "") for tool in tools}
    return PolicyText(
        posted.get("mode", ""),
        tuple(_ruled(rules, "allow") + _lines(posted.get("allow", ""))),
        tuple(_ruled(rules, "deny") + _lines(posted.get("deny", ""))),
    )


def _ruled(rules: dict[str, str], effect: str) -> list[str]:
    return [name for name, rule in rules.items() if rule == effect]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
