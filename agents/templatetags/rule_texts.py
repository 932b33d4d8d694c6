"""Template filters for policies: sentences about rules, titles of modes, and simulations."""

from collections import Counter
from uuid import UUID

from django import template
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from agents.policies.rule_texts import MODE_TITLES, build_rule_text, name_rule
from agents.policies.simulations import PolicySimulation, SimulationGroup
from bonobot.accounts.templatetags.display import percent_of, tone
from bonobot.core.i18n.localization import localize_text
from bonobot.core.text.syntax_highlighting import render_sentence
from bonobot.ledger.budgets import describe_budget_key, parse_budget_key

register = template.Library()


@register.filter
@register.simple_tag(name="rule_text")
def rule_text(rule: object, agent_id: UUID | str | None = "", server_name: str = "") -> SafeString:
    """Return a localized sentence about a rule; blank for an ID without one.

    `agent_id` is None if the organization's policy decided, because the call had no agent.
    `server_name` is the server of the tool that was decided about.
    """
    text = build_rule_text(
        str(rule or ""),
        of_agent=agent_id is not None,
        server_name=str(server_name or ""),
    )
    return render_sentence(localize_text(text))


@register.filter
def rule_title(rule: object) -> str:
    """Return what decides by a rule, with the tools that it matches; the ID if that is unknown."""
    text = str(rule or "")
    if parse_budget_key(text):
        return capfirst(localize_text(describe_budget_key(text)))
    return " ".join(filter(None, map(str, name_rule(text)))) or text


@register.filter
def is_counter(rule: object) -> bool:
    """Return whether the ID of a rule is the key of a budget or rate, which is for programs."""
    return str(rule or "").startswith(("budget:", "rate:"))


@register.filter
def mode_title(mode: str) -> object:
    """Return the title of a policy's mode."""
    return MODE_TITLES.get(mode, mode)


@register.filter
def compared_decisions(
    simulation: PolicySimulation,
) -> list[tuple[str, list[tuple[str, str, int, int]]]]:
    """Return the effects of the current and the simulated rules, with calls and percent."""
    titles = (_("Current rules"), simulation.before), (_("Simulated rules"), simulation.after)
    return [(title, _list_effects(calls_by_effect)) for title, calls_by_effect in titles]


@register.simple_tag
def simulated_calls_url(simulation: PolicySimulation, group: SimulationGroup) -> str:
    """Return the URL of the audit entries of a group's calls, of the time that was simulated."""
    from bonobot.ledger.admin.usage import build_time_filters  # admins load template tags

    since = simulation.until if simulation.stopped and simulation.until else simulation.since
    filters = {
        "kind": "call",
        "tool_name": group.tool,
        "server_id": group.server_id,
        "agent_id": group.agent_id,
        **build_time_filters(since),
    }
    query = urlencode({name: str(value) for name, value in filters.items() if value})
    return f"{reverse('admin:ledger_auditrow_changelist')}?{query}"


def _list_effects(calls_by_effect: Counter[str]) -> list[tuple[str, str, int, int]]:
    total = calls_by_effect.total()
    return [
        (effect, tone(effect), calls_by_effect[effect], percent_of(calls_by_effect[effect], total))
        for effect in ("allow", "ask", "deny")
    ]
