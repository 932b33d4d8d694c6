"""The policy form and its table of tools, and explanations of decisions.

Rules that the page didn't show stay unchanged; a rule that is chosen for a whole group applies to
the tools whose own rule wasn't posted.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import READERS, AgentAdmin
from agents.calls.explain import explain, find_no_tools_reason
from agents.calls.snapshots import CallSnapshot, SnapshotTool, get_snapshot_cache
from agents.models import Agent, ToolPolicy
from agents.policies.decisions import decide
from agents.policies.services import (
    EFFECTS,
    Entry,
    PolicySpec,
    RuleSpec,
    build_draft_policy,
    load_policy_spec,
    set_policy,
)
from agents.policies.simulations import DAYS, PolicySimulation, replay
from bonobot.accounts.admin_base import (
    ObjectRequest,
    redirect_to_page,
    render_fragment,
    render_screen,
)
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import WHO_MAY, Action
from bonobot.core.i18n.localization import localize_if_translatable
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, NotFound, Problem

MODES = (
    (ToolPolicy.Mode.NONE, _("None"), _("Every tool is blocked.")),
    (ToolPolicy.Mode.ALLOWLIST, _("Allow list"), _("Only tools that a rule allows.")),
    (ToolPolicy.Mode.DENYLIST, _("Deny list"), _("All tools but those that a rule denies.")),
    (ToolPolicy.Mode.ALL, _("All"), _("Every approved tool of its servers.")),
)
CHOICES = (("allow", _("allow"), "good"), ("ask", _("ask"), "warn"), ("deny", _("deny"), "bad"))
EXAMPLE = '{"properties": {"amount": {"minimum": 1000}}, "required": ["amount"]}'
STRONGEST_FIRST = ("deny", "ask", "allow")


@dataclass(frozen=True)
class ToolRuleRow:
    """A tool with its current decision and the rule that names it, if any."""

    tool: SnapshotTool
    rule: str


@dataclass(frozen=True)
class ConditionRow:
    """A rule with a condition, as entered in the form."""

    effect: str = "ask"
    tool: str = ""
    when: str = ""


@dataclass(frozen=True)
class PolicyFormData:
    """A policy as the page shows it: rules of single tools, and patterns, one per line."""

    mode: str
    ruled: tuple[ToolRuleRow, ...]
    patterns: tuple[tuple[str, Any, str], ...]
    conditions: tuple[ConditionRow, ...]


def build_form_data(
    text: PolicySpec, tools: Sequence[SnapshotTool], listed: Sequence[SnapshotTool]
) -> PolicyFormData:
    """Return a stored policy as the form shows it; `shown_tools` are those on this page."""
    rules = collect_tool_rules(text, tools)
    return PolicyFormData(
        mode=text.mode,
        ruled=tuple(ToolRuleRow(tool, rules.get(tool.name, "")) for tool in listed),
        patterns=_build_pattern_fields(
            {e: "\n".join(_list_other_entries(text, rules, e)) for e in EFFECTS}
        ),
        conditions=tuple(
            ConditionRow(effect, one.tool, json.dumps(one.when, ensure_ascii=False))
            for effect in EFFECTS
            for one in text.entries(effect)
            if isinstance(one, RuleSpec)
        ),
    )


def parse_form_data(
    posted: Any, tools: Sequence[SnapshotTool], listed: Sequence[SnapshotTool]
) -> PolicyFormData:
    """Return the posted values as typed, to show them with their errors."""
    rules = {tool.name: posted.get(f"rule-{tool.name}", "") for tool in tools}
    return PolicyFormData(
        mode=posted.get("mode", ""),
        ruled=tuple(ToolRuleRow(tool, rules[tool.name]) for tool in listed),
        patterns=_build_pattern_fields({effect: posted.get(effect, "") for effect in EFFECTS}),
        conditions=tuple(_parse_condition_rows(posted)),
    )


def parse_policy_text(
    posted: Any,
    tools: Sequence[SnapshotTool],
    stored: PolicySpec,
    spread: Mapping[str, str] | None = None,
) -> PolicySpec:
    """Return the posted policy; rules of tools that the page didn't show stay.

    `group_rules` are rules chosen for whole groups, by tool name. Raises `InvalidInput` with the
    field of a condition that is not a JSON object.
    """
    kept = collect_tool_rules(stored, tools) | dict(spread or {})
    rules = {tool.name: posted.get(f"rule-{tool.name}", kept.get(tool.name, "")) for tool in tools}
    lists: dict[str, list[Entry]] = {
        effect: [
            *(name for name, rule in rules.items() if rule == effect),
            *(line.strip() for line in posted.get(effect, "").splitlines() if line.strip()),
        ]
        for effect in EFFECTS
    }
    for index, one in enumerate(_parse_condition_rows(posted)):
        if one.effect not in lists:
            raise InvalidInput(
                format_message("There is no effect {effect!r}.", effect=one.effect),
                field=f"conditions[{index}].effect",
            )
        lists[one.effect].append(RuleSpec(one.tool, _parse_condition(one.when, index)))
    return PolicySpec(posted.get("mode", ""), **{e: tuple(found) for e, found in lists.items()})


def collect_tool_rules(text: PolicySpec, tools: Sequence[SnapshotTool]) -> dict[str, str]:
    """Return the strongest rule that names exactly one tool, by tool name."""
    names = {tool.name for tool in tools}
    found: dict[str, str] = {}
    for effect in STRONGEST_FIRST:
        for entry in text.entries(effect):
            if isinstance(entry, str) and entry in names:
                found.setdefault(entry, effect)
    return found


def _list_other_entries(text: PolicySpec, rules: Mapping[str, str], effect: str) -> list[str]:
    """Return the entries of an effect that are not in the table."""
    entries = [entry for entry in text.entries(effect) if isinstance(entry, str)]
    return [entry for entry in entries if rules.get(entry) != effect]


def _build_pattern_fields(texts: Mapping[str, str]) -> tuple[tuple[str, Any, str], ...]:
    return tuple((effect, title, texts[effect]) for effect, title, _tone in CHOICES)


def _parse_condition_rows(posted: Any) -> list[ConditionRow]:
    columns = (posted.getlist(f"when-{name}") for name in ("effect", "tool", "schema"))
    rows = [ConditionRow(*(cell.strip() for cell in row)) for row in zip(*columns, strict=False)]
    return [row for row in rows if row.tool or row.when]


def _parse_condition(typed: str, index: int) -> dict[str, Any]:
    try:
        found = json.loads(typed or "null")
    except ValueError as error:
        found, fault = None, f"The condition is not JSON: {error}."
    else:
        fault = "The condition is not a JSON object."
    if not isinstance(found, dict):
        raise InvalidInput(
            fault,
            code="unusable_condition",
            field=f"conditions[{index}].when",
            remedy=format_message(
                "Write a JSON Schema over the arguments, such as {example}.", example=EXAMPLE
            ),
        )
    return found


SHOWN_AT_ONCE = 200  # rows; with more, each group loads its rows when it is opened
NO_RULE = "none"
BUILT_IN = "builtin"


@dataclass(frozen=True)
class ToolGroup:
    """The tools of a server, or the built-in ones: counts by decision, and the loaded rows.

    `chosen` is the rule that was posted for the whole group.
    """

    key: str
    title: str
    total: int
    allowed: int
    asked: int
    ruled: tuple[ToolRuleRow, ...]
    chosen: str = ""

    @property
    def folded(self) -> bool:
        """Return whether its rows are loaded when it is opened."""
        return not self.ruled

    @property
    def rest(self) -> int:
        """Return how many rows are not loaded."""
        return self.total - len(self.ruled)


def get_group_key(tool: SnapshotTool) -> str:
    """Return the group that a tool belongs to."""
    return str(tool.facts.server_id or BUILT_IN)


def select_visible_tools(
    tools: Sequence[SnapshotTool], posted: Mapping[str, Any]
) -> list[SnapshotTool]:
    """Return the tools whose rows are on the page: all of a few, or only those that were posted."""
    if len(tools) <= SHOWN_AT_ONCE:
        return list(tools)
    return [tool for tool in tools if f"rule-{tool.name}" in posted]


def build_tool_groups(
    tools: Sequence[SnapshotTool], ruled: Sequence[ToolRuleRow], posted: Mapping[str, Any]
) -> tuple[ToolGroup, ...]:
    """Return the groups of sorted tools with their loaded rows."""
    return tuple(
        ToolGroup(
            key=key,
            title=several[0].facts.server_name or _t("Built in"),
            total=len(several),
            allowed=sum(tool.decision.allowed for tool in several),
            asked=sum(tool.decision.verdict == "ask" for tool in several),
            ruled=tuple(one for one in ruled if get_group_key(one.tool) == key),
            chosen=posted.get(f"all-{key}", ""),
        )
        for key, several in ((key, tuple(found)) for key, found in groupby(tools, get_group_key))
    )


def expand_group_rules(tools: Sequence[SnapshotTool], posted: Mapping[str, Any]) -> dict[str, str]:
    """Return the rules chosen for whole groups, by tool name."""
    said = {tool.name: posted.get(f"all-{get_group_key(tool)}", "") for tool in tools}
    return {
        name: "" if rule == NO_RULE else rule
        for name, rule in said.items()
        if rule in (*EFFECTS, NO_RULE)
    }


@AgentAdmin.add_page("policy", _("Policy"), order=40)
def show_policy(visit: ObjectRequest) -> HttpResponseBase:
    """Show the policy, or replace it."""
    agent: Agent = visit.object
    query, posted = visit.request.GET, visit.request.POST
    snapshot = get_snapshot_cache().current("agent", agent.pk)
    tools = _list_tools(snapshot)
    sought = query.get("q", "").strip()
    found = _search_tools(tools, sought)
    listed, stored = select_visible_tools(found, posted), load_policy_spec(agent)
    problem, tried, draft = None, None, build_form_data(stored, tools, listed)
    if visit.request.method == "POST":
        draft = parse_form_data(posted, tools, listed)
        try:
            tried = _save_or_simulate(
                visit, parse_policy_text(posted, tools, stored, expand_group_rules(found, posted))
            )
        except Problem as refusal:
            problem = refusal
        else:
            if tried is None:
                return redirect_to_page(visit, "policy", f"?{query.urlencode()}" if query else "")
    return visit.show(
        "agents/policy.html",
        agent=agent,
        draft=draft,
        groups=build_tool_groups(found, draft.ruled, posted),
        found=len(found),
        many=len(tools) > SHOWN_AT_ONCE,
        q=sought,
        total=len(tools),
        modes=MODES,
        choices=CHOICES,
        example=EXAMPLE,
        problem=problem,
        tried=tried,
        days=DAYS,
        lack=find_no_tools_reason(snapshot),
        allowed=sum(tool.decision.allowed for tool in tools),
        asked=sum(tool.decision.verdict == "ask" for tool in tools),
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
        may_try=visit.principal.may(Action.VIEW_AUDIT),
        status=problem.status if problem else 200,
    )


def _save_or_simulate(visit: ObjectRequest, wanted: PolicySpec) -> PolicySimulation | None:
    """Save the policy, or return its simulation if that was requested."""
    if visit.request.POST.get("do") == "try":
        return replay(visit.principal, visit.object, wanted)
    set_policy(visit.principal, visit.object, wanted)
    messages.success(visit.request, _t("Saved. It holds on the very next call."))
    return None


@AgentAdmin.add_deed("policy_preview", needs=Action.MANAGE_AGENTS)
def show_policy_preview(visit: ObjectRequest) -> HttpResponseBase:
    """Return the decisions of the unsaved policy."""
    agent: Agent = visit.object
    posted = visit.request.POST
    snapshot = get_snapshot_cache().current("agent", agent.pk)
    tools = _list_tools(snapshot)
    found = _search_tools(tools, visit.request.GET.get("q", "").strip())
    text = parse_policy_text(
        posted, tools, load_policy_spec(agent), expand_group_rules(found, posted)
    )
    ruling = replace(snapshot.ruling, policy=build_draft_policy(agent, text))
    decided = [replace(tool, decision=decide(tool.facts, ruling)) for tool in found]
    return render_fragment(
        visit.request,
        "agents/policy_preview.html",
        agent=agent,
        tools=[tool for tool in decided if f"rule-{tool.name}" in posted],
        groups=build_tool_groups(decided, (), posted),
    )


@AgentAdmin.add_page("policy_rows")
def show_group_rows(visit: ObjectRequest) -> HttpResponseBase:
    """Return one page of a group's rows as a fragment."""
    agent: Agent = visit.object
    query = visit.request.GET
    tools = _list_tools(get_snapshot_cache().current("agent", agent.pk))
    found = _search_tools(tools, query.get("q", "").strip())
    paged = Paginator(
        [tool for tool in found if get_group_key(tool) == query.get("group")], SHOWN_AT_ONCE
    ).get_page(query.get("page"))
    return render_fragment(
        visit.request,
        "agents/policy_rows.html",
        agent=agent,
        ruled=build_form_data(load_policy_spec(agent), tools, list(paged)).ruled,
        choices=CHOICES,
        group=query.get("group", ""),
        paged=paged,
        q=query.get("q", ""),
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
    )


def show_organization_policy(request: HttpRequest) -> HttpResponseBase:
    """Show or replace the organization's policy, which applies to every agent."""
    principal = resolve_principal(request)
    principal.require(Action.VIEW)
    organization = Organization.objects.get(pk=principal.organization_id)
    stored = load_policy_spec(organization)
    problem, draft = None, build_form_data(stored, (), ())
    if request.method == "POST":
        try:
            set_policy(principal, organization, parse_policy_text(request.POST, (), stored))
        except Problem as refusal:
            problem, draft = refusal, parse_form_data(request.POST, (), ())
        else:
            messages.success(request, _t("Saved. It holds on the very next call."))
            return HttpResponseRedirect(reverse("admin:organization_policy"))
    return render_screen(
        request,
        "organization_policy.html",
        title=_("Rules of the organization"),
        draft=draft,
        modes=MODES,
        choices=CHOICES,
        example=EXAMPLE,
        problem=problem,
        may_manage=principal.may(Action.MANAGE_ORGANIZATION),
        who=WHO_MAY[Action.MANAGE_ORGANIZATION],
        status=problem.status if problem else 200,
    )


def _list_tools(snapshot: CallSnapshot) -> list[SnapshotTool]:
    """Return the agent's available tools, built-in ones last."""
    found = snapshot.tools.values()
    return sorted((tool for tool in found if tool.facts.state != "gone"), key=_order)


def _order(tool: SnapshotTool) -> tuple[bool, str, str, str]:
    return tool.facts.source == "builtin", tool.facts.server_name, get_group_key(tool), tool.name


def _search_tools(tools: Sequence[SnapshotTool], sought: str) -> Sequence[SnapshotTool]:
    """Return the tools with every word in their name, server or description."""
    words = sought.lower().split()
    return [tool for tool in tools if all(word in _build_search_text(tool) for word in words)]


def _build_search_text(tool: SnapshotTool) -> str:
    about = f"{tool.description} {localize_if_translatable(tool.description)}"
    return f"{tool.name} {tool.facts.server_name} {about}".lower()


@AgentAdmin.add_page("why", needs=READERS, under="policy")
def show_explanation(visit: ObjectRequest) -> HttpResponseBase:
    """Explain what would be decided about a call; nothing is called."""
    agent: Agent = visit.object
    query = visit.request.GET
    name, typed = query.get("tool", ""), query.get("arguments", "").strip()
    if not name:
        return redirect_to_page(visit, "policy")  # which has a "why?" at each tool
    snapshot = get_snapshot_cache().current("agent", agent.pk)
    tool = snapshot.tools.get(name)
    if tool is None:
        raise NotFound(
            format_message(
                "The agent `{agent_slug}` has no tool {name!r}.", agent_slug=agent.slug, name=name
            ),
            code="unknown_tool",
            field="tool",
            remedy="Its policy tab lists its tools; a new one appears after a discovery.",
        )
    problem: Problem | None = None
    arguments = None
    try:
        arguments = _read(typed) if typed else None
    except Problem as refused:
        problem = refused
    told = explain(visit.principal, snapshot, tool, arguments)
    for stage in told["stages"]:
        stage["title"] = stage["stage"].replace("_", " ")
    return visit.show(
        "agents/why.html",
        agent=agent,
        tool=tool,
        told=told,
        typed=typed,
        schema=json.dumps(tool.input_schema, indent=2, ensure_ascii=False),
        problem=problem,
        status=problem.status if problem else 200,
    )


def _read(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidInput(
            format_message("The arguments are not JSON: {error}.", error=error),
            field="arguments",
            remedy='Write an object, such as {"timezone": "UTC"}.',
        ) from None
    if not isinstance(found, dict):
        raise InvalidInput(
            "The arguments must be an object.", field="arguments", remedy="Write {…}."
        )
    return found
