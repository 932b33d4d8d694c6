"""Rules: what a tool policy names, and when a rule holds. Pure.

A rule means a server's own tool names (or built-in ones) and may ask something of the arguments,
as a JSON Schema. Until the arguments are known, as in a list, a rule with a condition counts only
where it allows: the list shows what might be called.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal
from uuid import UUID

from bonobot.lib.problems import Invalid
from mcp_servers.naming import is_exact, own_name_matches, seen_by_models
from mcp_servers.schemas import NeedsConfinement, fit

Effect = Literal["allow", "ask", "deny"]
Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; `server_id` None means any server, no `condition` any arguments."""

    effect: str
    source: str
    pattern: str
    server_id: UUID | None = None
    condition: Mapping[str, Any] | None = field(default=None, hash=False)

    def matches(self, source: str, server_id: UUID | None, own_name: str) -> bool:
        """Tell whether this rule is about a tool, whatever its arguments."""
        if self.source != source:
            return False
        if self.server_id is not None and self.server_id != server_id:
            return False
        if fnmatchcase(own_name, self.pattern):
            return True
        # A glob, and all that restricts, also means the name as models see it (`create_*` for
        # `create-issue`); an exact permission never reaches a tool of a similar name.
        lenient = self.effect != "allow" or "*" in self.pattern
        return lenient and own_name_matches(self.pattern, own_name)

    def holds(self, arguments: Arguments | None) -> bool:
        """Tell whether the condition holds; one that can't be told never widens anything."""
        if self.condition is None:
            return True
        if arguments is None:
            return self.effect == "allow"
        try:
            return fit(self.condition, arguments)
        except (NeedsConfinement, Invalid):
            return self.effect != "allow"

    def __str__(self) -> str:
        when = " when its condition holds" if self.condition is not None else ""
        return f"{self.effect} {self.source}:{self.pattern}{when}"


@dataclass(frozen=True, slots=True)
class Policy:
    """A mode (`none`, `allowlist`, `denylist`, `all`) with its rules."""

    mode: str = "none"
    rules: tuple[Rule, ...] = ()
    # Places of rules that name one tool, by that name, and those of all others: thousands of tools
    # aren't held against thousands of rules.
    _exact: Mapping[tuple[str, str], list[int]] = field(init=False, compare=False, repr=False)
    _others: tuple[int, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        exact: dict[tuple[str, str], list[int]] = {}
        others = []
        for place, rule in enumerate(self.rules):
            if is_exact(rule.pattern):
                exact.setdefault((rule.source, rule.pattern), []).append(place)
            else:
                others.append(place)
        object.__setattr__(self, "_exact", exact)
        object.__setattr__(self, "_others", tuple(others))

    def about(self, source: str, server_id: UUID | None, own_name: str) -> Iterator[Rule]:
        """Yield the rules about a tool in their order, whatever its arguments."""
        if not self.rules:
            return iter(())
        places = {
            *self._others,
            *self._exact.get((source, own_name), ()),
            *self._exact.get((source, seen_by_models(own_name)), ()),
        }
        found = (self.rules[place] for place in sorted(places))
        return (rule for rule in found if rule.matches(source, server_id, own_name))

    def as_dict(self) -> dict[str, Any]:
        """Return the policy as JSON; `read_policy` reads it."""
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


def read_policy(written: Mapping[str, Any]) -> Policy:
    """Return the policy that `Policy.as_dict` wrote."""
    rules = tuple(
        Rule(**{**one, "server_id": UUID(one["server_id"]) if one["server_id"] else None})
        for one in written["rules"]
    )
    return Policy(written["mode"], rules)
