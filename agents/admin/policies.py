"""The policy form and its table of tools, and explanations of decisions.

Rules that the page didn't show stay unchanged; a rule that is chosen for a whole group applies to
the tools whose own rule wasn't posted.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponseNotAllowed, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.middleware.csrf import get_token
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.affected_agents import (
    count_agent_decisions,
    list_agents,
    list_newly_decided_agents,
)
from agents.admin.agents import AgentAdmin
from agents.admin.policy_editor import (
    PolicyScope,
    build_policy_editor,
    build_stored_policy,
    load_agent_scope,
    load_organization_defaults_scope,
    load_organization_scope,
)
from agents.agent_tools.restore_policy import restore_policy, save_policy
from agents.agent_tools.services import list_settable_tools
from agents.calls.explain import find_no_tools_reason
from agents.calls.missing_tools import describe_missing_tool, list_missing_tools
from agents.calls.snapshots import CallSnapshot, SnapshotTool, get_snapshot_cache
from agents.models import Agent, ToolPolicy
from agents.policies.decisions import decide_tool_call
from agents.policies.services import (
    EFFECTS,
    Entry,
    PolicySpec,
    RuleSpec,
    build_draft_policy,
    load_policy_spec,
)
from agents.policies.simulations import DEFAULT_DAYS, PolicySimulation, simulate_policy
from bonobot.accounts.admin_base import (
    ObjectRequest,
    redirect_back,
    redirect_to_page,
    render_fragment,
    render_screen,
)
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import ALLOWED_ROLES, Action
from bonobot.core.i18n.localization import localize_if_translatable
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text.json_reader import describe_json_error

MODES = (
    (ToolPolicy.Mode.NONE, _("None"), _("All tools are denied.")),
    (ToolPolicy.Mode.ALLOWLIST, _("Allowlist"), _("Only tools that a rule allows.")),
    (ToolPolicy.Mode.DENYLIST, _("Denylist"), _("All tools except those that a rule denies.")),
    (ToolPolicy.Mode.ALL, _("All"), _("All approved tools of the attached servers.")),
)
EFFECT_CHOICES = (
    ("allow", _("allow"), "good"),
    ("ask", _("ask"), "warn"),
    ("deny", _("deny"), "bad"),
)
CONDITION_EXAMPLE = '{"properties": {"amount": {"minimum": 1000}}, "required": ["amount"]}'
FORM_CHOICES: Mapping[str, Any] = {
    "modes": MODES,
    "choices": EFFECT_CHOICES,
    "example": CONDITION_EXAMPLE,
    "days": DEFAULT_DAYS,
}
STRONGEST_FIRST = ("deny", "ask", "allow")
# What the modes mean for calls without an agent.
DEFAULT_MODES = (
    (ToolPolicy.Mode.NONE, _("None"), _("All calls are denied.")),
    (ToolPolicy.Mode.ALLOWLIST, _("Allowlist"), _("Only tools that a rule below allows.")),
    (ToolPolicy.Mode.DENYLIST, _("Denylist"), _("All approved tools that no rule denies.")),
    (ToolPolicy.Mode.ALL, _("All"), _("All approved tools.")),
)
CONDITION_SEPARATOR = " when "
PAGE_SIZE = 200  # rows; with more, each group loads its rows when it is opened
AGENTS_PAGE_SIZE = 50
NO_RULE = "none"
BUILTIN_GROUP = "builtin"


def add_policy_saved_message(
    request: HttpRequest, owner: Agent | Organization, signed: str
) -> None:
    """Say that a policy or an agent's tools were saved.

    `signed` restores what was replaced; blank if nothing changed.
    """
    text = _t("Saved. Effective immediately.")
    if not signed:
        messages.success(request, text)
        return
    is_agent = isinstance(owner, Agent)
    button = format_html(
        '{} <form class="bb-inline-form" method="post" action="{}">'
        '<input type="hidden" name="csrfmiddlewaretoken" value="{}">'
        '<input type="hidden" name="replaced" value="{}">'
        '<button class="bb-link-button" type="submit">{}</button></form>',
        text,
        reverse("admin:agents_agent_restore_policy", args=[owner.pk])
        if is_agent
        else reverse("admin:organization_restore_policy"),
        get_token(request),
        signed,
        _t("Undo"),
    )
    messages.success(request, button)


@AgentAdmin.add_object_action("restore_policy", required_actions=Action.MANAGE_AGENTS)
def restore_agent_policy(visit: ObjectRequest) -> None:
    """Restore the policy that the last save replaced."""
    restore_policy(visit.principal, visit.object, visit.request.POST.get("replaced", ""))
    messages.success(visit.request, _t("The previous policy was restored."))


def restore_organization_policy(request: HttpRequest) -> HttpResponseBase:
    """Restore the organization's policy that the last save replaced."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    principal = resolve_principal(request)
    organization = Organization.objects.get(pk=principal.organization_id)
    restore_policy(principal, organization, request.POST.get("replaced", ""))
    messages.success(request, _t("The previous policy was restored."))
    return redirect_back(request, reverse("admin:organization_policy"))


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
    tool_rules: tuple[ToolRuleRow, ...]
    patterns: tuple[tuple[str, Any, str], ...]
    conditions: tuple[ConditionRow, ...]


def build_form_data(
    policy: PolicySpec, tools: Sequence[SnapshotTool], shown_tools: Sequence[SnapshotTool]
) -> PolicyFormData:
    """Return a stored policy as the form shows it; `shown_tools` are those on this page."""
    rules = collect_tool_rules(policy, tools)
    return PolicyFormData(
        mode=policy.mode,
        tool_rules=tuple(ToolRuleRow(tool, rules.get(tool.name, "")) for tool in shown_tools),
        patterns=_build_pattern_fields(
            {e: "\n".join(_list_other_entries(policy, rules, e)) for e in EFFECTS}
        ),
        conditions=tuple(
            ConditionRow(effect, entry.tool, json.dumps(entry.when, ensure_ascii=False))
            for effect in EFFECTS
            for entry in policy.get_entries(effect)
            if isinstance(entry, RuleSpec)
        ),
    )


def parse_form_data(
    posted: Any, tools: Sequence[SnapshotTool], shown_tools: Sequence[SnapshotTool]
) -> PolicyFormData:
    """Return the posted values as typed, to show them with their errors."""
    rules = {tool.name: posted.get(f"rule-{tool.name}", "") for tool in tools}
    return PolicyFormData(
        mode=posted.get("mode", ""),
        tool_rules=tuple(ToolRuleRow(tool, rules[tool.name]) for tool in shown_tools),
        patterns=_build_pattern_fields({effect: posted.get(effect, "") for effect in EFFECTS}),
        conditions=tuple(_parse_condition_rows(posted)),
    )


def parse_posted_policy(
    posted: Any,
    tools: Sequence[SnapshotTool],
    stored_policy: PolicySpec,
    group_rules: Mapping[str, str] | None = None,
) -> PolicySpec:
    """Return the posted policy; rules of tools that the page didn't show stay.

    `group_rules` are rules chosen for whole groups, by tool name. Raises `InvalidInput` with the
    field of a condition that is not a JSON object.
    """
    kept_rules = collect_tool_rules(stored_policy, tools) | dict(group_rules or {})
    rules = {
        tool.name: posted.get(f"rule-{tool.name}", kept_rules.get(tool.name, "")) for tool in tools
    }
    entries_by_effect: dict[str, list[Entry]] = {
        effect: [
            *(name for name, rule in rules.items() if rule == effect),
            *_parse_lines(effect, posted.get(effect, "")),
        ]
        for effect in EFFECTS
    }
    for index, condition_row in enumerate(_parse_condition_rows(posted)):
        if condition_row.effect not in entries_by_effect:
            raise InvalidInput(
                format_message("The effect {effect!r} doesn't exist.", effect=condition_row.effect),
                field=f"conditions[{index}].effect",
            )
        entries_by_effect[condition_row.effect].append(
            RuleSpec(condition_row.tool, _parse_condition(condition_row.when, index))
            if condition_row.when
            else condition_row.tool
        )
    return PolicySpec(
        posted.get("mode", ""),
        **{effect_name: tuple(entries) for effect_name, entries in entries_by_effect.items()},
    )


def _parse_lines(effect: str, text: str) -> list[Entry]:
    """Return the entries of a field, one per line; raises `InvalidInput` with the line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [_parse_entry(effect, number, line) for number, line in enumerate(lines)]


def _parse_entry(effect: str, number: int, line: str) -> Entry:
    tool, when, condition = line.partition(CONDITION_SEPARATOR)
    if not when:
        return line
    try:
        schema = json.loads(condition)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise InvalidInput(
            format_message("The condition of `{tool}` isn't a JSON object.", tool=tool),
            code="unusable_condition",
            field=f"{effect}[{number}].when",
            remedy='Use the format: mcp_bank_transfer when {"required": ["amount"]}.',
        )
    return RuleSpec(tool.strip(), schema)


def collect_tool_rules(policy: PolicySpec, tools: Sequence[SnapshotTool]) -> dict[str, str]:
    """Return the strongest rule that names exactly one tool, by tool name."""
    names = {tool.name for tool in tools}
    rules: dict[str, str] = {}
    for effect in STRONGEST_FIRST:
        for entry in policy.get_entries(effect):
            if isinstance(entry, str) and entry in names:
                rules.setdefault(entry, effect)
    return rules


def _list_other_entries(policy: PolicySpec, rules: Mapping[str, str], effect: str) -> list[str]:
    """Return the entries of an effect that are not in the table."""
    entries = [entry for entry in policy.get_entries(effect) if isinstance(entry, str)]
    return [entry for entry in entries if rules.get(entry) != effect]


def _build_pattern_fields(texts: Mapping[str, str]) -> tuple[tuple[str, Any, str], ...]:
    return tuple((effect, title, texts[effect]) for effect, title, _tone in EFFECT_CHOICES)


def _parse_condition_rows(posted: Any) -> list[ConditionRow]:
    columns = (posted.getlist(f"when-{name}") for name in ("effect", "tool", "schema"))
    rows = [ConditionRow(*(cell.strip() for cell in row)) for row in zip(*columns, strict=False)]
    return [row for row in rows if row.tool or row.when]


def _parse_condition(text: str, index: int) -> dict[str, Any]:
    try:
        schema = json.loads(text or "null")
    except (ValueError, RecursionError) as error:
        text_of_error = describe_json_error(error)
        schema, fault = (
            None,
            format_message("The condition isn't valid JSON: {error}.", error=text_of_error),
        )
    else:
        fault = format_message("The condition must be a JSON object.")
    if not isinstance(schema, dict):
        raise InvalidInput(
            fault,
            code="unusable_condition",
            field=f"conditions[{index}].when",
            remedy=format_message(
                "Enter a JSON Schema for the arguments, such as {example}.",
                example=CONDITION_EXAMPLE,
            ),
        )
    return schema


@dataclass(frozen=True)
class ToolGroup:
    """The tools of a server, or the built-in ones: counts by decision, and the loaded rows.

    `posted_rule` is the rule that was posted for the whole group.
    """

    key: str
    title: str
    total: int
    allowed: int
    ask_count: int
    tool_rules: tuple[ToolRuleRow, ...]
    posted_rule: str = ""

    @property
    def folded(self) -> bool:
        """Return whether its rows are loaded when it is opened."""
        return not self.tool_rules

    @property
    def rest(self) -> int:
        """Return how many rows are not loaded."""
        return self.total - len(self.tool_rules)


def get_group_key(tool: SnapshotTool) -> str:
    return str(tool.facts.server_id or BUILTIN_GROUP)


def select_visible_tools(
    tools: Sequence[SnapshotTool], posted: Mapping[str, Any]
) -> list[SnapshotTool]:
    """Return the tools whose rows are on the page: all of a few, or only those that were posted."""
    if len(tools) <= PAGE_SIZE:
        return list(tools)
    return [tool for tool in tools if f"rule-{tool.name}" in posted]


def build_tool_groups(
    tools: Sequence[SnapshotTool], tool_rules: Sequence[ToolRuleRow], posted: Mapping[str, Any]
) -> tuple[ToolGroup, ...]:
    """Return the groups of sorted tools with their loaded rows."""
    return tuple(
        ToolGroup(
            key=key,
            title=group_tools[0].facts.server_name or _t("Built-in tools"),
            total=len(group_tools),
            allowed=sum(tool.decision.allowed for tool in group_tools),
            ask_count=sum(tool.decision.verdict == "ask" for tool in group_tools),
            tool_rules=tuple(row for row in tool_rules if get_group_key(row.tool) == key),
            posted_rule=posted.get(f"all-{key}", ""),
        )
        for key, group_tools in (
            (key, tuple(members)) for key, members in groupby(tools, get_group_key)
        )
    )


def expand_group_rules(tools: Sequence[SnapshotTool], posted: Mapping[str, Any]) -> dict[str, str]:
    """Return the rules chosen for whole groups, by tool name."""
    chosen_rules = {tool.name: posted.get(f"all-{get_group_key(tool)}", "") for tool in tools}
    return {
        name: "" if rule == NO_RULE else rule
        for name, rule in chosen_rules.items()
        if rule in (*EFFECTS, NO_RULE)
    }


@AgentAdmin.add_page("policy", _("Policy"), order=40)
def show_policy(visit: ObjectRequest) -> HttpResponseBase:
    agent: Agent = visit.object
    query, posted = visit.request.GET, visit.request.POST
    snapshot = get_snapshot_cache().load_current("agent", agent.pk)
    tools = _list_tools(snapshot)
    search_text = query.get("q", "").strip()
    matching_tools = search_tools(tools, search_text)
    shown_tools = select_visible_tools(matching_tools, posted)
    stored_policy = load_policy_spec(agent)
    problem, simulation, form_data = None, None, build_form_data(stored_policy, tools, shown_tools)
    draft_policy = stored_policy
    if visit.request.method == "POST":
        form_data = parse_form_data(posted, tools, shown_tools)
        draft_policy = _parse_draft(posted, tools, stored_policy, matching_tools)
        try:
            simulation = _save_or_simulate(
                visit,
                lambda stored: parse_posted_policy(
                    posted, tools, stored, expand_group_rules(matching_tools, posted)
                ),
            )
        except Problem as exc:
            problem = exc
        else:
            if simulation is None:
                return redirect_to_page(visit, "policy", f"?{query.urlencode()}" if query else "")
    return visit.render_tab(
        "policies/agent_policy.html",
        agent=agent,
        draft=form_data,
        editor=build_policy_editor(load_agent_scope(snapshot, agent), stored_policy, draft_policy),
        groups=build_tool_groups(matching_tools, form_data.tool_rules, posted),
        preview_query=f"?{urlencode({'q': search_text})}",
        match_count=len(matching_tools),
        many=len(tools) > PAGE_SIZE,
        q=search_text,
        total=len(tools),
        **FORM_CHOICES,
        problem=problem,
        simulation=simulation,
        no_tools_reason=find_no_tools_reason(snapshot),
        allowed=sum(tool.decision.allowed for tool in tools),
        ask_count=sum(tool.decision.verdict == "ask" for tool in tools),
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
        may_try=visit.principal.may(Action.VIEW_AUDIT),
        status=problem.status if problem else 200,
    )


def _parse_draft(
    posted: Any,
    tools: Sequence[SnapshotTool],
    stored: PolicySpec,
    matching_tools: Sequence[SnapshotTool] = (),
) -> PolicySpec:
    """Return the posted policy to show it; the stored one if a condition isn't valid."""
    try:
        return parse_posted_policy(
            posted, tools, stored, expand_group_rules(matching_tools, posted)
        )
    except InvalidInput:
        return stored


def _save_or_simulate(
    visit: ObjectRequest, build_policy: Callable[[PolicySpec], PolicySpec]
) -> PolicySimulation | None:
    """Save the policy, or return its simulation if that was requested.

    `build_policy` returns it for the stored one.
    """
    if visit.request.POST.get("do") == "simulate":
        policy = build_policy(load_policy_spec(visit.object))
        return simulate_policy(visit.principal, visit.object, policy)
    policy, signed = save_policy(visit.principal, visit.object, build_policy)
    add_policy_saved_message(visit.request, visit.object, signed)
    _warn_about_missing_tools(visit.request, visit.object, policy)
    return None


def _warn_about_missing_tools(
    request: HttpRequest, owner: Agent | Organization, policy: PolicySpec
) -> None:
    for name in list_missing_tools(owner, policy):
        messages.warning(request, localize_if_translatable(describe_missing_tool(name)))


@AgentAdmin.add_object_action("policy_preview", required_actions=Action.VIEW_AUDIT)
def show_policy_preview(visit: ObjectRequest) -> HttpResponseBase:
    """Return the decisions of the unsaved policy."""
    agent: Agent = visit.object
    posted = visit.request.POST
    snapshot = get_snapshot_cache().load_current("agent", agent.pk)
    tools = _list_tools(snapshot)
    matching_tools = search_tools(tools, visit.request.GET.get("q", "").strip())
    stored_policy = load_policy_spec(agent)
    draft_policy = parse_posted_policy(
        posted, tools, stored_policy, expand_group_rules(matching_tools, posted)
    )
    editor = build_policy_editor(load_agent_scope(snapshot, agent), stored_policy, draft_policy)
    policy_context = snapshot.effective_policy
    if not editor.problem:
        policy_context = replace(policy_context, policy=build_draft_policy(agent, draft_policy))
    decided_tools = [
        replace(tool, decision=decide_tool_call(tool.facts, policy_context))
        for tool in matching_tools
    ]
    return render_fragment(
        visit.request,
        "policies/preview.html",
        agent=agent,
        editor=editor,
        **FORM_CHOICES,
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
        may_try=True,
        is_simulation="simulation" in visit.request.GET,
        tools=[tool for tool in decided_tools if f"rule-{tool.name}" in posted],
        groups=build_tool_groups(decided_tools, (), posted),
    )


@AgentAdmin.add_page("policy_rows")
def show_group_rows(visit: ObjectRequest) -> HttpResponseBase:
    agent: Agent = visit.object
    query = visit.request.GET
    tools = _list_tools(get_snapshot_cache().load_current("agent", agent.pk))
    matching_tools = search_tools(tools, query.get("q", "").strip())
    page = Paginator(
        [tool for tool in matching_tools if get_group_key(tool) == query.get("group")], PAGE_SIZE
    ).get_page(query.get("page"))
    return render_fragment(
        visit.request,
        "policies/tool_rows.html",
        agent=agent,
        tool_rules=build_form_data(load_policy_spec(agent), tools, list(page)).tool_rules,
        choices=EFFECT_CHOICES,
        group=query.get("group", ""),
        paged=page,
        q=query.get("q", ""),
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
    )


@dataclass(frozen=True)
class OrganizationSection:
    """A page of the organization's policy: the effects of its rules, and what they decide about."""

    name: str
    title: Any
    effects: tuple[str, ...]
    load_scope: Callable[[Organization], PolicyScope]


RULES = OrganizationSection(
    "rules", _("Organization rules"), ("deny", "ask"), load_organization_scope
)
DEFAULTS = OrganizationSection(
    "defaults", _("Defaults"), ("allow",), load_organization_defaults_scope
)
# The simulation has all of them.
EVERYTHING = OrganizationSection("", "", STRONGEST_FIRST, load_organization_scope)


def show_organization_policy(
    request: HttpRequest, *, section: OrganizationSection = RULES
) -> HttpResponseBase:
    """Show or replace the organization's policy: a section of it, the other one stays."""
    principal = resolve_principal(request)
    principal.require(Action.VIEW)
    organization = Organization.objects.get(pk=principal.organization_id)
    stored_policy = load_policy_spec(organization)
    problem, form_data = None, build_form_data(stored_policy, (), ())
    draft_policy = stored_policy
    if request.method == "POST":
        draft_policy = _parse_draft(request.POST, (), stored_policy)
        try:
            policy, signed = save_policy(
                principal,
                organization,
                lambda stored: parse_posted_policy(request.POST, (), stored),
            )
        except Problem as exc:
            problem, form_data = exc, parse_form_data(request.POST, (), ())
        else:
            add_policy_saved_message(request, organization, signed)
            _warn_about_missing_tools(request, organization, policy)
            return HttpResponseRedirect(request.path)
    return render_screen(
        request,
        "policies/organization_policy.html",
        title=section.title,
        draft=form_data,
        problem=problem,
        may_manage=principal.may(Action.MANAGE_ORGANIZATION),
        may_try=principal.may(Action.VIEW_AUDIT),
        simulate_url=reverse("admin:organization_simulate"),
        allowed_roles=ALLOWED_ROLES[Action.MANAGE_ORGANIZATION],
        status=problem.status if problem else 200,
        **build_section_context(organization, section, stored_policy, draft_policy),
    )


def show_organization_defaults(request: HttpRequest) -> HttpResponseBase:
    """Show or replace what decides calls without an agent: the mode and the allow rules."""
    return show_organization_policy(request, section=DEFAULTS)


def build_section_context(
    organization: Organization,
    section: OrganizationSection,
    stored_policy: PolicySpec,
    draft_policy: PolicySpec,
) -> dict[str, Any]:
    """Return what a page or a preview of the organization's policy shows of it."""
    editor = build_policy_editor(section.load_scope(organization), stored_policy, draft_policy)
    is_for_agents = section is not DEFAULTS
    return {
        **FORM_CHOICES,
        "editor": editor.keep_groups(section.effects),
        "section": section.name,
        "rule_choices": [choice for choice in EFFECT_CHOICES if choice[0] in section.effects],
        "modes": DEFAULT_MODES,
        "affected_agents": list_newly_decided_agents(organization.pk, editor)
        if is_for_agents
        else None,
    }


def show_organization_agents(request: HttpRequest) -> HttpResponseBase:
    """Show the effective decisions on the tools of each agent."""
    principal = resolve_principal(request)
    principal.require(Action.VIEW)
    organization = Organization.objects.get(pk=principal.organization_id)
    paged = Paginator(list_agents(organization.pk), AGENTS_PAGE_SIZE).get_page(
        request.GET.get("page")
    )
    tools = load_organization_scope(organization).tools
    return render_screen(
        request,
        "policies/organization_policy_agents.html",
        title=_("Agents"),
        rows=count_agent_decisions(list(paged), tools, build_stored_policy(organization)),
        paged=paged,
    )


def show_organization_policy_preview(request: HttpRequest) -> HttpResponseBase:
    """Return the rules and the effect of the unsaved policy of the organization."""
    principal = resolve_principal(request)
    principal.require(Action.VIEW_AUDIT)
    organization = Organization.objects.get(pk=principal.organization_id)
    stored_policy = load_policy_spec(organization)
    draft_policy = parse_posted_policy(request.POST, (), stored_policy)
    is_simulation = "simulation" in request.GET
    section = {part.name: part for part in (RULES, DEFAULTS)}.get(request.GET.get("section", ""))
    return render_fragment(
        request,
        "policies/preview.html",
        may_manage=principal.may(Action.MANAGE_ORGANIZATION),
        may_try=True,
        is_simulation=is_simulation,
        simulate_url="" if is_simulation else reverse("admin:organization_simulate"),
        **build_section_context(organization, section or EVERYTHING, stored_policy, draft_policy),
    )


def _list_tools(snapshot: CallSnapshot) -> list[SnapshotTool]:
    """Return the tools that the page *Tools* lists, too; built-in ones last."""
    return sorted(list_settable_tools(snapshot), key=_get_sort_key)


def _get_sort_key(tool: SnapshotTool) -> tuple[bool, str, str, str]:
    return tool.facts.source == "builtin", tool.facts.server_name, get_group_key(tool), tool.name


def search_tools(tools: Sequence[SnapshotTool], search_text: str) -> list[SnapshotTool]:
    """Return the tools with every word in their name, server or description."""
    search_words = search_text.lower().split()
    return [
        tool for tool in tools if all(word in _build_search_text(tool) for word in search_words)
    ]


def _build_search_text(tool: SnapshotTool) -> str:
    description = f"{tool.description} {localize_if_translatable(tool.description)}"
    return f"{tool.name} {tool.facts.server_name} {description}".lower()
