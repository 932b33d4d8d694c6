"""Policy rules, their conditions, and glob lists. No I/O.

A rule matches a server's own tool names (or built-in ones) and may have a condition on the
arguments, as a JSON Schema. As long as the arguments are unknown, as in a list, a rule with a
condition only counts if it allows: the list shows what might be callable.

An attached server stores globs over the server's own names; none means everything, including
future tools. A selection must name at least one or `*`, so an empty form field allows nothing.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal
from uuid import UUID

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.schemas import ConfinementNeeded, is_valid_for_schema
from mcp_servers.tool_names import fold_own_name, is_exact, matches_tool_name

Effect = Literal["allow", "ask", "deny"]
Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; without `server_id` it matches any server, without `condition` any arguments."""

    effect: str
    source: str
    pattern: str
    server_id: UUID | None = None
    condition: Mapping[str, Any] | None = field(default=None, hash=False)

    def matches(self, source: str, server_id: UUID | None, own_name: str) -> bool:
        """Return whether this rule matches a tool, whatever its arguments."""
        if self.source != source:
            return False
        if self.server_id is not None and self.server_id != server_id:
            return False
        if fnmatchcase(own_name, self.pattern):
            return True
        # Globs and restricting rules also match the name as models see it (`create_*` for
        # `create-issue`); an exact allow rule never matches a similar name.
        lenient = self.effect != "allow" or "*" in self.pattern
        return lenient and matches_tool_name(self.pattern, own_name)

    def holds(self, arguments: Arguments | None) -> bool:
        """Return whether the condition is met; an undecidable one never allows more."""
        if self.condition is None:
            return True
        if arguments is None:
            return self.effect == "allow"
        try:
            return is_valid_for_schema(self.condition, arguments)
        except (ConfinementNeeded, InvalidInput):
            return self.effect != "allow"

    def __str__(self) -> str:
        when = " when its condition holds" if self.condition is not None else ""
        return f"{self.effect} {self.source}:{self.pattern}{when}"


@dataclass(frozen=True, slots=True)
class Policy:
    """A mode (`none`, `allowlist`, `denylist`, `all`) with its rules."""

    mode: str = "none"
    rules: tuple[Rule, ...] = ()
    # Indexes of rules with an exact name, by that name, and of all others, so that thousands of
    # tools aren't compared with thousands of rules.
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
        """Return the rules that match a tool, in order, whatever its arguments."""
        if not self.rules:
            return iter(())
        places = {
            *self._others,
            *self._exact.get((source, own_name), ()),
            *self._exact.get((source, fold_own_name(own_name)), ()),
        }
        found = (self.rules[place] for place in sorted(places))
        return (rule for rule in found if rule.matches(source, server_id, own_name))

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


def read_policy(written: Mapping[str, Any]) -> Policy:
    """Return the policy from the output of `Policy.as_dict`."""
    rules = tuple(
        Rule(**{**one, "server_id": UUID(one["server_id"]) if one["server_id"] else None})
        for one in written["rules"]
    )
    return Policy(written["mode"], rules)


EVERYTHING = "*"


def choose(
    patterns: Sequence[str], offered: Collection[str], *, field: str = "allowed_tools"
) -> list[str]:
    """Return the globs to store for a selection of names: [] for `*`.

    Raises `InvalidInput`: `nothing_chosen` for an empty selection, `unknown_tool` if a pattern
    matches none of `available_names` (not checked if there are none yet).
    """
    if EVERYTHING in patterns:
        return []
    if not patterns:
        raise InvalidInput(
            "Nothing is chosen.",
            code="nothing_chosen",
            field=field,
            remedy=format_message(
                'Choose at least one, or everything ("{everything}"), also what comes later.',
                everything=EVERYTHING,
            ),
        )
    for pattern in patterns if offered else ():
        if not any(fnmatchcase(name, pattern) for name in offered):
            raise InvalidInput(
                format_message(
                    "The server offers nothing called `{pattern}`.",
                    pattern=make_visible(pattern, 120),
                ),
                code="unknown_tool",
                field=field,
                remedy="List what it offers, and choose of that.",
            )
    return list(dict.fromkeys(patterns))


def is_name_allowed(name: str, allowed: Sequence[str], denied: Sequence[str] = ()) -> bool:
    """Return whether these lists allow a name."""
    if any(fnmatchcase(name, glob) for glob in denied):
        return False
    return not allowed or any(fnmatchcase(name, glob) for glob in allowed)


def build_globs(names: Collection[str], offered: Collection[str], kept: Sequence[str]) -> list[str]:
    """Return globs for the selected names; the current ones if they match exactly these."""
    if kept and {name for name in offered if is_name_allowed(name, kept)} == set(names):
        return list(kept)
    return [escape_glob(name) for name in sorted(names)]


def escape_glob(name: str) -> str:
    """Return a glob that matches exactly this name."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
