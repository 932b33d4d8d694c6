"""A tool policy as a form: rules of single tools, patterns, and rules with conditions (A14).

Whatever the page doesn't show, or can't say in its table, stays as it is.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy as _

from agents.governance.snapshots import Tool
from agents.models import ToolPolicy
from agents.tool_policies import EFFECTS, Entry, PolicyText, RuleText
from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say

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
class Ruled:
    """A tool with the rule that names it, if one does, and what holds now."""

    tool: Tool
    rule: str


@dataclass(frozen=True)
class Typed:
    """A rule with a condition as it stands in the form."""

    effect: str = "ask"
    tool: str = ""
    when: str = ""


@dataclass(frozen=True)
class Draft:
    """A policy as the page shows it: rules of single tools, patterns, one on each line."""

    mode: str
    ruled: tuple[Ruled, ...]
    patterns: tuple[tuple[str, Any, str], ...]
    conditions: tuple[Typed, ...]


def draft_of(text: PolicyText, tools: Sequence[Tool], listed: Sequence[Tool]) -> Draft:
    """Return a stored policy as the form shows it; `listed` are the tools on this page."""
    rules = single_rules(text, tools)
    return Draft(
        mode=text.mode,
        ruled=tuple(Ruled(tool, rules.get(tool.name, "")) for tool in listed),
        patterns=_patterns({e: "\n".join(_beside(text, rules, e)) for e in EFFECTS}),
        conditions=tuple(
            Typed(effect, one.tool, json.dumps(one.when, ensure_ascii=False))
            for effect in EFFECTS
            for one in text.entries(effect)
            if isinstance(one, RuleText)
        ),
    )


def typed_draft(posted: Any, tools: Sequence[Tool], listed: Sequence[Tool]) -> Draft:
    """Return what was posted just as it was typed, for a page that says what is wrong with it."""
    rules = {tool.name: posted.get(f"rule-{tool.name}", "") for tool in tools}
    return Draft(
        mode=posted.get("mode", ""),
        ruled=tuple(Ruled(tool, rules[tool.name]) for tool in listed),
        patterns=_patterns({effect: posted.get(effect, "") for effect in EFFECTS}),
        conditions=tuple(_typed(posted)),
    )


def posted_text(
    posted: Any, tools: Sequence[Tool], stored: PolicyText, spread: Mapping[str, str] | None = None
) -> PolicyText:
    """Return the policy that was posted; single rules that the page didn't show stay.

    `spread` are rules for some of those by the tools' names, chosen for many at once. Raises
    `Invalid` naming the condition that is no JSON object.
    """
    kept = single_rules(stored, tools) | dict(spread or {})
    rules = {tool.name: posted.get(f"rule-{tool.name}", kept.get(tool.name, "")) for tool in tools}
    lists: dict[str, list[Entry]] = {
        effect: [
            *(name for name, rule in rules.items() if rule == effect),
            *(line.strip() for line in posted.get(effect, "").splitlines() if line.strip()),
        ]
        for effect in EFFECTS
    }
    for index, one in enumerate(_typed(posted)):
        if one.effect not in lists:
            raise Invalid(
                say("There is no effect {effect!r}.", effect=one.effect),
                field=f"conditions[{index}].effect",
            )
        lists[one.effect].append(RuleText(one.tool, _condition(one.when, index)))
    return PolicyText(posted.get("mode", ""), **{e: tuple(found) for e, found in lists.items()})


def single_rules(text: PolicyText, tools: Sequence[Tool]) -> dict[str, str]:
    """Return the strongest rule that names just one tool, by the tool's name."""
    names = {tool.name for tool in tools}
    found: dict[str, str] = {}
    for effect in STRONGEST_FIRST:
        for entry in text.entries(effect):
            if isinstance(entry, str) and entry in names:
                found.setdefault(entry, effect)
    return found


def _beside(text: PolicyText, rules: Mapping[str, str], effect: str) -> list[str]:
    """Return the entries of an effect that the table doesn't show."""
    entries = [entry for entry in text.entries(effect) if isinstance(entry, str)]
    return [entry for entry in entries if rules.get(entry) != effect]


def _patterns(texts: Mapping[str, str]) -> tuple[tuple[str, Any, str], ...]:
    return tuple((effect, title, texts[effect]) for effect, title, _tone in CHOICES)


def _typed(posted: Any) -> list[Typed]:
    columns = (posted.getlist(f"when-{name}") for name in ("effect", "tool", "schema"))
    rows = [Typed(*(cell.strip() for cell in row)) for row in zip(*columns, strict=False)]
    return [row for row in rows if row.tool or row.when]


def _condition(typed: str, index: int) -> dict[str, Any]:
    try:
        found = json.loads(typed or "null")
    except ValueError as error:
        found, fault = None, f"The condition is not JSON: {error}."
    else:
        fault = "The condition is not a JSON object."
    if not isinstance(found, dict):
        raise Invalid(
            fault,
            code="unusable_condition",
            field=f"conditions[{index}].when",
            remedy=say(
                "Write a JSON Schema over the arguments, such as {example}.", example=EXAMPLE
            ),
        )
    return found
