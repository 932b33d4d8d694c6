"""Compare the decisions of two policies about one past call. No I/O.

Audit entries have masked arguments, and only the start of long ones. A condition that reads a
hidden value is unknown: both results are tried, the same one in both policies, and a verdict is
reported only if it is the same either way. Otherwise the call is undecidable.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any, Literal

from agents.policies.decisions import EffectivePolicy, PolicyDecision, ToolFacts, decide_tool_call
from agents.policies.rules import Arguments, Policy, Rule
from bonobot.core.text.canonical_json import to_canonical_json
from bonobot.core.text.masked_values import MASK, TOO_DEEP
from bonobot.ledger.audit.renamed_codes import add_old_codes

Path = tuple[str | int, ...]
Kind = Literal["unchanged", "changed", "undecidable"]

# Codes of denials by policy. Other refusals (limits, invalid arguments, kill switches) don't depend
# on the policy.
POLICY_DENIAL_CODES = add_old_codes(
    {"denied_by_policy", "denied_by_organization", "denied_by_attachment"}
)
MAX_UNKNOWN_CONDITIONS = 6  # unknown conditions per call: 64 combinations
MAX_HIDDEN_PATHS = 64  # with more hidden values, all arguments count as unknown
ALL_PATHS: tuple[Path, ...] = ((),)

_TRUNCATED_KEYS = {"truncated", "sha256", "length"}
_STRUCTURE_KEYWORDS = frozenset(  # these depend on which values exist, not on the values themselves
    {"dependentRequired", "maxItems", "maxProperties", "minItems", "minProperties"}
    | {"propertyNames", "required", "type", "maxContains", "minContains"}
)
_SCALAR_KEYWORDS = frozenset(  # these don't apply to objects and arrays
    {"exclusiveMaximum", "exclusiveMinimum", "format", "maximum", "maxLength", "minimum"}
    | {"minLength", "multipleOf", "pattern"}
)
_ANNOTATION_KEYWORDS = frozenset(
    {"$anchor", "$comment", "$defs", "$id", "$schema", "contentEncoding", "contentMediaType"}
    | {"default", "definitions", "deprecated", "description", "examples", "readOnly", "title"}
    | {"writeOnly"}
)
_SUBSCHEMA_KEYWORDS = frozenset(
    {"allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"}
)
_OBJECT_KEYWORDS = frozenset({"additionalProperties", "unevaluatedProperties"})
_ARRAY_KEYWORDS = frozenset(
    {"additionalItems", "contains", "items", "prefixItems", "unevaluatedItems"}
)


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

    current: EffectivePolicy
    changed: EffectivePolicy
    _verdicts_by_tool: dict[ToolFacts, VerdictPair | None] = field(default_factory=dict)

    def compare_without_arguments(self, tool: ToolFacts) -> VerdictPair | None:
        """Return the verdicts if they don't depend on arguments, else None."""
        if tool not in self._verdicts_by_tool:
            rules = (*self.current.list_tool_rules(tool), *self.changed.list_tool_rules(tool))
            has_conditions = any(rule.condition is not None for rule in rules)
            self._verdicts_by_tool[tool] = (
                None if has_conditions else compare_policies(tool, {}, self.current, self.changed)
            )
        return self._verdicts_by_tool[tool]

    def compare_call(self, tool: ToolFacts, arguments: Arguments | None) -> VerdictPair:
        """Return the verdicts about a call; `arguments` None means unknown."""
        verdicts = self.compare_without_arguments(tool)
        return verdicts or compare_policies(tool, arguments, self.current, self.changed)


def compare_policies(
    tool: ToolFacts,
    arguments: Arguments | None,
    current: EffectivePolicy,
    changed_policy: EffectivePolicy,
) -> VerdictPair:
    """Return the verdicts about a call with arguments from the audit log."""
    policies = _filter_for_tool(current, tool), _filter_for_tool(changed_policy, tool)
    unknown_conditions = _list_unknown_conditions(policies, list_hidden_paths(arguments))
    if len(unknown_conditions) > MAX_UNKNOWN_CONDITIONS:
        return VerdictPair("undecidable")
    assumption_sets = [
        dict(zip(unknown_conditions, truths, strict=True))
        for truths in product((False, True), repeat=len(unknown_conditions))
    ]
    decisions = [
        tuple(
            decide_tool_call(tool, _apply_assumptions(policy, assumptions), arguments or {})
            for policy in policies
        )
        for assumptions in assumption_sets
    ]
    return _summarize_decisions(decisions)


def _summarize_decisions(decisions: list[tuple[PolicyDecision, ...]]) -> VerdictPair:
    verdict_pairs = {(before.verdict, after.verdict) for before, after in decisions}
    rule = decisions[-1][1].rule
    current_verdicts, changed_verdicts = (
        {before for before, _ in verdict_pairs},
        {after for _, after in verdict_pairs},
    )
    before = current_verdicts.pop() if len(current_verdicts) == 1 else ""
    after = changed_verdicts.pop() if len(changed_verdicts) == 1 else ""
    if all(current == changed_verdict for current, changed_verdict in verdict_pairs):
        return VerdictPair("unchanged", before, after, rule if after else "")
    kind: Kind = "changed" if len(verdict_pairs) == 1 else "undecidable"
    return VerdictPair(kind, before, after, rule if after else "")


def _filter_for_tool(effective_policy: EffectivePolicy, tool: ToolFacts) -> EffectivePolicy:
    """Return the effective policy with only the rules that match this tool."""
    tool_identity = tool.source, tool.server_id, tool.own_name
    return replace(
        effective_policy,
        policy=Policy(
            effective_policy.policy.mode,
            tuple(effective_policy.policy.list_tool_rules(*tool_identity)),
        ),
        organization=Policy(
            effective_policy.organization.mode,
            tuple(effective_policy.organization.list_tool_rules(*tool_identity)),
        ),
    )


def _list_unknown_conditions(
    policies: tuple[EffectivePolicy, ...], paths: tuple[Path, ...]
) -> list[str]:
    """Return the conditions that read a hidden value, as canonical JSON without duplicates."""
    conditions = {
        to_canonical_json(rule.condition): rule.condition
        for policy in policies
        for rule in (*policy.policy.rules, *policy.organization.rules)
        if rule.condition is not None
    }
    return [
        canonical
        for canonical, condition in conditions.items()
        if any(is_path_relevant(condition, path) for path in paths)
    ]


def _apply_assumptions(
    effective_policy: EffectivePolicy, assumptions: Mapping[str, bool]
) -> EffectivePolicy:
    """Return the effective policy with each unknown condition assumed to be met or not."""
    if not assumptions:
        return effective_policy
    return replace(
        effective_policy,
        policy=Policy(
            effective_policy.policy.mode,
            tuple(_apply_rule_assumptions(effective_policy.policy.rules, assumptions)),
        ),
        organization=Policy(
            effective_policy.organization.mode,
            tuple(_apply_rule_assumptions(effective_policy.organization.rules, assumptions)),
        ),
    )


def _apply_rule_assumptions(
    rules: tuple[Rule, ...], assumptions: Mapping[str, bool]
) -> Iterator[Rule]:
    for rule in rules:
        is_met = (
            None if rule.condition is None else assumptions.get(to_canonical_json(rule.condition))
        )
        if is_met is None:
            yield rule
        elif is_met:
            yield replace(rule, condition=None)


def is_hidden(arguments: Any) -> bool:
    """Return whether audited arguments are missing or truncated as a whole."""
    return not isinstance(arguments, Mapping) or set(arguments) == _TRUNCATED_KEYS


def list_hidden_paths(arguments: Any) -> tuple[Path, ...]:
    """Return the paths of hidden values in audited arguments; `()` is the whole value."""
    if is_hidden(arguments):
        return ALL_PATHS
    paths = tuple(islice(_list_masked_paths(arguments, ()), MAX_HIDDEN_PATHS + 1))
    return paths if len(paths) <= MAX_HIDDEN_PATHS else ALL_PATHS


def _list_masked_paths(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, str):
        if MASK in value or value == TOO_DEEP:
            yield path
    elif isinstance(value, Mapping):
        if any(MASK in name for name in value):
            yield path  # the masked key is unknown
            return
        for name, item_value in value.items():
            yield from _list_masked_paths(item_value, (*path, name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _list_masked_paths(item, (*path, index))


def is_path_relevant(schema: Any, path: Path) -> bool:
    """Return whether a JSON Schema may depend on the value at this path; True if in doubt."""
    if not isinstance(schema, Mapping):
        return not isinstance(schema, bool)
    if not path:
        return not _ANNOTATION_KEYWORDS.issuperset(schema)
    return any(_is_keyword_relevant(keyword, value, path) for keyword, value in schema.items())


def _is_keyword_relevant(keyword: str, value: Any, path: Path) -> bool:
    first, remaining_path = path[0], path[1:]
    if (
        keyword in _STRUCTURE_KEYWORDS
        or keyword in _SCALAR_KEYWORDS
        or keyword in _ANNOTATION_KEYWORDS
    ):
        return False
    if keyword in _SUBSCHEMA_KEYWORDS:
        return any(
            is_path_relevant(subschema, path) for subschema in _list_subschemas(keyword, value)
        )
    if keyword in _ARRAY_KEYWORDS:
        items = value if isinstance(value, list) else [value]
        return isinstance(first, int) and any(
            is_path_relevant(subschema, remaining_path) for subschema in items
        )
    if keyword in _OBJECT_KEYWORDS:
        return isinstance(first, str) and is_path_relevant(value, remaining_path)
    if keyword == "properties":
        return first in value and is_path_relevant(value[first], remaining_path)
    if keyword == "patternProperties":
        return isinstance(first, str) and any(
            is_path_relevant(subschema, remaining_path) for subschema in value.values()
        )
    # `const`, `enum` and `uniqueItems` compare whole values; references may point anywhere.
    return True


def _list_subschemas(keyword: str, value: Any) -> list[Any]:
    """Return the subschemas of a keyword that apply to the same value."""
    if keyword in ("dependencies", "dependentSchemas"):
        return [subschema for subschema in value.values() if not isinstance(subschema, list)]
    return value if isinstance(value, list) else [value]
