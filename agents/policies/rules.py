"""Policy rules, their conditions, and glob lists. No I/O.

A rule matches a server's own tool names (or built-in ones) and may have a condition on the
arguments, as a JSON Schema. As long as the arguments are unknown, as in a list, a rule with a
condition only counts if it allows: the list shows what might be callable.

A default rule (without a pattern) belongs to a server. It applies to calls of the server's tools
that no other rule of the policy matches.

An attached server stores globs over the server's own names; none means everything, including
future tools. A selection must name at least one or `*`, so an empty form field allows nothing.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.tool_names import fold_own_name, is_exact_pattern, matches_tool_name

if TYPE_CHECKING:
    from mcp_servers.schemas.classify_schema import ValueSize

Effect = Literal["allow", "ask", "deny"]
Arguments = Mapping[str, Any]
STRICTEST_FIRST = ("deny", "ask", "allow")
EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; without `server_id` it matches any server, without `condition` any arguments."""

    effect: str
    source: str
    pattern: str
    server_id: UUID | None = None
    condition: Mapping[str, Any] | None = field(default=None, hash=False)

    def matches(self, source: str, server_id: UUID | None, own_name: str) -> bool:
        """Return whether this rule matches a tool with any arguments; a default never does."""
        if self.source != source or self.is_default:
            return False
        if self.server_id is not None and self.server_id != server_id:
            return False
        if fnmatchcase(own_name, self.pattern):
            return True
        # Globs and restricting rules also match the name as models see it (`create_*` for
        # `create-issue`); an exact allow rule never matches a similar name.
        is_lenient = self.effect != "allow" or "*" in self.pattern
        return is_lenient and matches_tool_name(self.pattern, own_name)

    @property
    def is_default(self) -> bool:
        """Whether this is the default of its server, for tools that no other rule matches."""
        return not self.pattern

    def is_condition_met(
        self, arguments: Arguments | None, size: "ValueSize | None" = None
    ) -> bool:
        """Return whether the condition is met; an undecidable one never allows more.

        `size` is that of the arguments if they were measured before.
        """
        from mcp_servers.schemas.validate_arguments import SubprocessNeeded, is_valid_for_schema

        if self.condition is None:
            return True
        if arguments is None:
            return self.effect == "allow"
        try:
            return is_valid_for_schema(self.condition, arguments, size)
        except (SubprocessNeeded, InvalidInput):
            return self.effect != "allow"

    def __str__(self) -> str:
        suffix = " when its condition holds" if self.condition is not None else ""
        return f"{self.effect} {self.source}:{self.pattern or 'default'}{suffix}"


@dataclass(frozen=True, slots=True)
class Policy:
    """A mode (`none`, `allowlist`, `denylist`, `all`) with its rules."""

    mode: str = "none"
    rules: tuple[Rule, ...] = ()
    # Indexes of rules with an exact name, by that name, and of all others, so that thousands of
    # tools aren't compared with thousands of rules.
    _exact_indexes: Mapping[tuple[str, str], list[int]] = field(
        init=False, compare=False, repr=False
    )
    _other_indexes: tuple[int, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        exact: dict[tuple[str, str], list[int]] = {}
        other_indexes = []
        for index, rule in enumerate(self.rules):
            if is_exact_pattern(rule.pattern):
                exact.setdefault((rule.source, rule.pattern), []).append(index)
            else:
                other_indexes.append(index)
        object.__setattr__(self, "_exact_indexes", exact)
        object.__setattr__(self, "_other_indexes", tuple(other_indexes))

    def list_tool_rules(self, source: str, server_id: UUID | None, own_name: str) -> Iterator[Rule]:
        """Return the rules that match a tool, in order, regardless of its arguments."""
        if not self.rules:
            return iter(())
        indexes = {
            *self._other_indexes,
            *self._exact_indexes.get((source, own_name), ()),
            *self._exact_indexes.get((source, fold_own_name(own_name)), ()),
        }
        rules = (self.rules[index] for index in sorted(indexes))
        return (rule for rule in rules if rule.matches(source, server_id, own_name))

    def find_default(self, server_id: UUID | None) -> Rule | None:
        """Return the strictest default rule of a server, if it has one."""
        if server_id is None:
            return None
        defaults = [
            self.rules[index]
            for index in self._exact_indexes.get(("mcp", ""), ())
            if self.rules[index].server_id == server_id and self.rules[index].condition is None
        ]
        return min(defaults, key=lambda rule: STRICTEST_FIRST.index(rule.effect), default=None)

    def as_dict(self) -> dict[str, Any]:
        """Return the policy as JSON data for `read_policy`."""
        return {
            "mode": self.mode,
            "rules": [
                {
                    "effect": rule.effect,
                    "source": rule.source,
                    "pattern": rule.pattern,
                    "server_id": str(rule.server_id) if rule.server_id else None,
                    "condition": dict(rule.condition) if rule.condition else None,
                }
                for rule in self.rules
            ],
        }


def read_policy(data: Mapping[str, Any]) -> Policy:
    """Return the policy from the output of `Policy.as_dict`."""
    rules = tuple(
        Rule(**{**entry, "server_id": UUID(entry["server_id"]) if entry["server_id"] else None})
        for entry in data["rules"]
    )
    return Policy(data["mode"], rules)


def clean_patterns(
    patterns: Sequence[str], available_names: Collection[str], *, field: str = "allowed_tools"
) -> list[str]:
    """Return the globs to store for a selection of names: [] for `*`.

    Raises `InvalidInput`: `nothing_selected` for an empty selection, `unknown_tool` if a pattern
    matches none of `available_names` (not checked if there are none yet).
    """
    if EVERYTHING in patterns:
        return []
    if not patterns:
        raise InvalidInput(
            "Nothing is selected.",
            code="nothing_selected",
            field=field,
            remedy=format_message(
                'Select at least one, or all ("{everything}"), including future ones.',
                everything=EVERYTHING,
            ),
        )
    for pattern in patterns if available_names else ():
        if not any(fnmatchcase(name, pattern) for name in available_names):
            raise InvalidInput(
                format_message(
                    "The server declares nothing that matches `{pattern}`.",
                    pattern=make_visible(pattern, 120),
                ),
                code="unknown_tool",
                field=field,
                remedy="List what the server declares, and choose from that.",
            )
    return list(dict.fromkeys(patterns))


def is_name_allowed(
    name: str, allowed_patterns: Sequence[str], denied_patterns: Sequence[str] = ()
) -> bool:
    if any(fnmatchcase(name, glob) for glob in denied_patterns):
        return False
    return not allowed_patterns or any(fnmatchcase(name, glob) for glob in allowed_patterns)


def build_globs(
    names: Collection[str], available_names: Collection[str], current_globs: Sequence[str]
) -> list[str]:
    """Return globs for the selected names; the current ones if they match exactly these."""
    if current_globs and {
        name for name in available_names if is_name_allowed(name, current_globs)
    } == set(names):
        return list(current_globs)
    return [escape_glob(name) for name in sorted(names)]


def escape_glob(name: str) -> str:
    """Return a glob that matches exactly this name."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
