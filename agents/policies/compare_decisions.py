"""Compare the decisions of two policies about one past call. No I/O.

Audit entries have masked arguments, and only the start of long ones. A condition that reads a
hidden value is unknown: both results are tried, the same one in both policies, and a verdict is
reported only if it is the same either way. Otherwise the call is undecidable.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any, Literal

from agents.policies.decisions import EffectivePolicy, PolicyDecision, ToolFacts, decide
from agents.policies.rules import Arguments, Policy, Rule
from bonobot.core.text.canonical_json import to_canonical_json
from bonobot.core.text.masked_values import MASK, TOO_DEEP

Path = tuple[str | int, ...]
Kind = Literal["same", "flip", "undecidable"]

# Codes of denials by policy. Other refusals (limits, invalid arguments, kill switches) don't depend
# on the policy.
RULED = frozenset({"denied_by_policy", "denied_by_organization", "denied_by_binding"})
MOST_UNKNOWN = 6  # unknown conditions per call: 64 combinations
MOST_HIDDEN = 64  # with more hidden values, all arguments count as unknown
EVERYTHING: tuple[Path, ...] = ((),)

_CUT = {"truncated", "sha256", "length"}
_STRUCTURE = frozenset(  # these depend on which values exist, not on the values themselves
    {"dependentRequired", "maxItems", "maxProperties", "minItems", "minProperties"}
    | {"propertyNames", "required", "type", "maxContains", "minContains"}
)
_OF_SCALARS = frozenset(  # these don't apply to objects and arrays
    {"exclusiveMaximum", "exclusiveMinimum", "format", "maximum", "maxLength", "minimum"}
    | {"minLength", "multipleOf", "pattern"}
)
_REMARKS = frozenset(
    {"$anchor", "$comment", "$defs", "$id", "$schema", "contentEncoding", "contentMediaType"}
    | {"default", "definitions", "deprecated", "description", "examples", "readOnly", "title"}
    | {"writeOnly"}
)
_SAME_PLACE = frozenset(
    {"allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"}
)
_MEMBERS = frozenset({"additionalProperties", "unevaluatedProperties"})
_ITEMS = frozenset({"additionalItems", "contains", "items", "prefixItems", "unevaluatedItems"})


@dataclass(frozen=True, slots=True)
class VerdictPair:
    """The verdicts of two policies about one call; empty if undecidable.

    `rule` is the deciding rule of the changed policy.
    """

    kind: Kind
    before: str = ""
    after: str = ""
    rule: str = ""


@dataclass(slots=True)
class PolicyComparison:
    """Compares two effective policies; caches verdicts that don't depend on arguments by tool."""

    now: EffectivePolicy
    changed: EffectivePolicy
    _settled: dict[ToolFacts, VerdictPair | None] = field(default_factory=dict)

    def without_arguments(self, tool: ToolFacts) -> VerdictPair | None:
        """Return the verdicts if they don't depend on arguments, else None."""
        if tool not in self._settled:
            rules = (*self.now.rules_about(tool), *self.changed.rules_about(tool))
            conditional = any(rule.condition is not None for rule in rules)
            self._settled[tool] = None if conditional else compare(tool, {}, self.now, self.changed)
        return self._settled[tool]

    def of(self, tool: ToolFacts, arguments: Arguments | None) -> VerdictPair:
        """Return the verdicts about a call; `arguments` None means unknown."""
        settled = self.without_arguments(tool)
        return settled or compare(tool, arguments, self.now, self.changed)


def compare(
    tool: ToolFacts, arguments: Arguments | None, now: EffectivePolicy, changed: EffectivePolicy
) -> VerdictPair:
    """Return the verdicts about a call with arguments from the audit log."""
    rulings = _filter_for_tool(now, tool), _filter_for_tool(changed, tool)
    unknown = _list_unknown_conditions(rulings, list_hidden_paths(arguments))
    if len(unknown) > MOST_UNKNOWN:
        return VerdictPair("undecidable")
    ways = [
        dict(zip(unknown, truths, strict=True))
        for truths in product((False, True), repeat=len(unknown))
    ]
    decided = [
        tuple(decide(tool, _apply_assumptions(one, known), arguments or {}) for one in rulings)
        for known in ways
    ]
    return _summarize_decisions(decided)


def _summarize_decisions(decided: list[tuple[PolicyDecision, ...]]) -> VerdictPair:
    found = {(before.verdict, after.verdict) for before, after in decided}
    rule = decided[-1][1].rule
    befores, afters = {before for before, _ in found}, {after for _, after in found}
    before = befores.pop() if len(befores) == 1 else ""
    after = afters.pop() if len(afters) == 1 else ""
    if all(one == other for one, other in found):
        return VerdictPair("same", before, after, rule if after else "")
    kind: Kind = "flip" if len(found) == 1 else "undecidable"
    return VerdictPair(kind, before, after, rule if after else "")


def _filter_for_tool(ruling: EffectivePolicy, tool: ToolFacts) -> EffectivePolicy:
    """Return the effective policy with only the rules that match this tool."""
    what = tool.source, tool.server_id, tool.own_name
    return replace(
        ruling,
        policy=Policy(ruling.policy.mode, tuple(ruling.policy.about(*what))),
        organization=Policy(ruling.organization.mode, tuple(ruling.organization.about(*what))),
    )


def _list_unknown_conditions(
    rulings: tuple[EffectivePolicy, ...], paths: tuple[Path, ...]
) -> list[str]:
    """Return the conditions that read a hidden value, as canonical JSON without duplicates."""
    conditions = {
        to_canonical_json(rule.condition): rule.condition
        for ruling in rulings
        for rule in (*ruling.policy.rules, *ruling.organization.rules)
        if rule.condition is not None
    }
    return [
        text
        for text, one in conditions.items()
        if any(is_path_relevant(one, path) for path in paths)
    ]


def _apply_assumptions(ruling: EffectivePolicy, known: Mapping[str, bool]) -> EffectivePolicy:
    """Return the effective policy with each unknown condition assumed to be met or not."""
    if not known:
        return ruling
    return replace(
        ruling,
        policy=Policy(
            ruling.policy.mode, tuple(_apply_rule_assumptions(ruling.policy.rules, known))
        ),
        organization=Policy(
            ruling.organization.mode,
            tuple(_apply_rule_assumptions(ruling.organization.rules, known)),
        ),
    )


def _apply_rule_assumptions(rules: tuple[Rule, ...], known: Mapping[str, bool]) -> Iterator[Rule]:
    for rule in rules:
        truth = None if rule.condition is None else known.get(to_canonical_json(rule.condition))
        if truth is None:
            yield rule
        elif truth:
            yield replace(rule, condition=None)


def list_hidden_paths(arguments: Any) -> tuple[Path, ...]:
    """Return the paths of hidden values in audited arguments; `()` is the whole value."""
    if not isinstance(arguments, Mapping) or set(arguments) == _CUT:
        return EVERYTHING
    found = tuple(islice(_list_masked_paths(arguments, ()), MOST_HIDDEN + 1))
    return found if len(found) <= MOST_HIDDEN else EVERYTHING


def _list_masked_paths(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, str):
        if MASK in value or value == TOO_DEEP:
            yield path
    elif isinstance(value, Mapping):
        if any(MASK in name for name in value):
            yield path  # the masked key is unknown
            return
        for name, member in value.items():
            yield from _list_masked_paths(member, (*path, name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _list_masked_paths(item, (*path, index))


def is_path_relevant(schema: Any, path: Path) -> bool:
    """Return whether a JSON Schema may depend on the value at this path; True if in doubt."""
    if not isinstance(schema, Mapping):
        return not isinstance(schema, bool)
    if not path:
        return not _REMARKS.issuperset(schema)
    return any(_is_keyword_relevant(keyword, said, path) for keyword, said in schema.items())


def _is_keyword_relevant(keyword: str, said: Any, path: Path) -> bool:
    first, rest = path[0], path[1:]
    if keyword in _STRUCTURE or keyword in _OF_SCALARS or keyword in _REMARKS:
        return False
    if keyword in _SAME_PLACE:
        return any(is_path_relevant(one, path) for one in _list_subschemas(keyword, said))
    if keyword in _ITEMS:
        items = said if isinstance(said, list) else [said]
        return isinstance(first, int) and any(is_path_relevant(one, rest) for one in items)
    if keyword in _MEMBERS:
        return isinstance(first, str) and is_path_relevant(said, rest)
    if keyword == "properties":
        return first in said and is_path_relevant(said[first], rest)
    if keyword == "patternProperties":
        return isinstance(first, str) and any(is_path_relevant(one, rest) for one in said.values())
    # `const`, `enum` and `uniqueItems` compare whole values; references may point anywhere.
    return True


def _list_subschemas(keyword: str, said: Any) -> list[Any]:
    """Return the subschemas of a keyword that apply to the same value."""
    if keyword in ("dependencies", "dependentSchemas"):
        return [one for one in said.values() if not isinstance(one, list)]
    return said if isinstance(said, list) else [said]
