"""Decide whether a tool may be called: pure, over plain facts (FEATURES A8, DESIGN section 2).

The order is fixed, and the first stage that refuses is the answer:

1. the agent is switched on,
2. the server is switched on,
3. the agent has the server (a binding, switched on),
4. the definition is approved as it stands, still offered, and switched on,
5. the binding's own lists (a denied tool is denied whatever else says),
6. the tool policy: `none` blocks all, `allowlist` lets through what an allow rule names (and no
   deny rule), `denylist` all that no deny rule names, `all` everything.

A tool is its server plus the server's own name for it. Names that an agent or a gateway shows play
no part, so renaming, wrapping or a look-alike never changes a decision.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from uuid import UUID

from mcp_servers.naming import own_name_matches


@dataclass(frozen=True, slots=True)
class Rule:
    """One allow or deny rule; `server_id` None means: any server."""

    effect: str
    source: str
    pattern: str
    server_id: UUID | None = None

    def matches(self, tool: "ToolFacts") -> bool:
        """Tell whether this rule is about `tool`."""
        if self.source != tool.source:
            return False
        if self.server_id is not None and self.server_id != tool.server_id:
            return False
        if fnmatchcase(tool.own_name, self.pattern):
            return True
        # A glob, and every denial, also means the name as models see it (`create_*` for
        # `create-issue`); an exact permission never reaches a tool of a similar name.
        lenient = self.effect == "deny" or "*" in self.pattern
        return lenient and own_name_matches(self.pattern, tool.own_name)

    def __str__(self) -> str:
        return f"{self.effect} {self.source}:{self.pattern}"


@dataclass(frozen=True, slots=True)
class Policy:
    """A mode (`none`, `allowlist`, `denylist`, `all`) with its rules."""

    mode: str = "none"
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Scope:
    """What a binding lets through of its server; None in place of a scope means: not bound."""

    enabled: bool = True
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolFacts:
    """Everything about a tool that a decision depends on.

    `state` is the definition's (`approved`, `pending`, `changed`, `refused`, `gone`); built-in
    tools are always `approved`. `label` is how people name the tool, and only shown.
    """

    source: str
    own_name: str
    label: str
    server_id: UUID | None = None
    server_name: str = ""
    server_enabled: bool = True
    state: str = "approved"
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage's verdict; `code` is empty where it lets the call through."""

    name: str
    rule: str
    code: str = ""
    reason: str = ""
    remedy: str = ""

    @property
    def allows(self) -> bool:
        """Tell whether this stage lets the call through."""
        return not self.code


@dataclass(frozen=True, slots=True)
class Decision:
    """Allow or deny, the rule that made it, and what to do next."""

    verdict: str
    rule: str
    code: str = ""
    reason: str = ""
    remedy: str = ""

    @property
    def allowed(self) -> bool:
        """Tell whether the call may go on."""
        return self.verdict == "allow"


_DEFINITION_REFUSALS = {
    "pending": (
        "not_approved",
        "The tool `{0}` waits for approval.",
        "Someone who may approve definitions reads it and approves it.",
    ),
    "changed": (
        "definition_changed",
        "The server changed the tool `{0}` since it was approved.",
        "Someone who may approve definitions compares and approves the change.",
    ),
    "refused": (
        "definition_refused",
        "The declaration of the tool `{0}` can't be used.",
        "Its page says why; the server has to change it.",
    ),
    "gone": (
        "tool_gone",
        "The server no longer offers the tool `{0}`.",
        "Refresh the server, or use another tool.",
    ),
}


def decide(
    tool: ToolFacts, *, policy: Policy, scope: Scope | None, agent_enabled: bool = True
) -> Decision:
    """Return the decision of the first stage that refuses, or of the last one."""
    last = Stage("policy", "policy:none")
    for stage in stages(tool, policy=policy, scope=scope, agent_enabled=agent_enabled):
        if not stage.allows:
            return Decision("deny", stage.rule, stage.code, stage.reason, stage.remedy)
        last = stage
    return Decision("allow", last.rule)


def stages(
    tool: ToolFacts, *, policy: Policy, scope: Scope | None, agent_enabled: bool = True
) -> Iterator[Stage]:
    """Yield every stage's own verdict, in order."""
    yield _switch("agent", agent_enabled, "agent_disabled", "This agent is switched off.")
    yield _switch(
        "server",
        tool.server_enabled,
        "server_disabled",
        f"The server `{tool.server_name}` is switched off.",
    )
    yield _bound(tool, scope)
    yield _definition(tool)
    yield _binding_lists(tool, scope)
    yield _policy(tool, policy)


def _switch(name: str, on: bool, code: str, reason: str) -> Stage:
    if on:
        return Stage(name, f"{name}:enabled")
    return Stage(name, f"{name}:enabled", code, reason, "An operator or owner can switch it on.")


def _bound(tool: ToolFacts, scope: Scope | None) -> Stage:
    if tool.source == "builtin" or (scope is not None and scope.enabled):
        return Stage("binding", "binding:enabled")
    reason = f"The agent does not have the server `{tool.server_name}`."
    if scope is not None:
        reason = f"The server `{tool.server_name}` is switched off for this agent."
    return Stage(
        "binding", "binding:enabled", "not_bound", reason, "Give the agent the server first."
    )


def _definition(tool: ToolFacts) -> Stage:
    if refusal := _DEFINITION_REFUSALS.get(tool.state):
        code, reason, remedy = refusal
        return Stage(
            "definition", f"definition:{tool.state}", code, reason.format(tool.label), remedy
        )
    if not tool.enabled:
        return Stage(
            "definition",
            "definition:switch",
            "tool_disabled",
            f"The tool `{tool.label}` is switched off.",
            "An operator can switch it on at its server.",
        )
    return Stage("definition", "definition:approved")


def _binding_lists(tool: ToolFacts, scope: Scope | None) -> Stage:
    if tool.source == "builtin" or scope is None:
        return Stage("scope", "binding:all")
    denied = next((glob for glob in scope.denied if fnmatchcase(tool.own_name, glob)), None)
    chosen = not scope.allowed or any(fnmatchcase(tool.own_name, glob) for glob in scope.allowed)
    if chosen and denied is None:
        return Stage("scope", "binding:allowed" if scope.allowed else "binding:all")
    return Stage(
        "scope",
        f"binding:denied:{denied}" if denied is not None else "binding:allowed",
        "denied_by_binding",
        f"The agent's binding to `{tool.server_name}` leaves out `{tool.label}`.",
        "Change the chosen tools of that server on the agent's servers tab.",
    )


def _policy(tool: ToolFacts, policy: Policy) -> Stage:
    deny = next((r for r in policy.rules if r.effect == "deny" and r.matches(tool)), None)
    allow = next((r for r in policy.rules if r.effect == "allow" and r.matches(tool)), None)
    rule = f"policy:{policy.mode}"
    if policy.mode == "all":
        return Stage("policy", rule)
    if policy.mode == "denylist" and deny is None:
        return Stage("policy", rule)
    if policy.mode == "allowlist" and deny is None and allow is not None:
        return Stage("policy", f"{rule}:{allow}")
    why = {
        "allowlist": "no rule allows it",
        "denylist": "a rule denies it",
    }.get(policy.mode, "the mode blocks every tool")
    if deny is not None and policy.mode != "none":
        rule, why = f"{rule}:{deny}", f"the rule `{deny}` denies it"
    return Stage(
        "policy",
        rule,
        "denied_by_policy",
        f"The tool policy (mode `{policy.mode}`) does not let `{tool.label}` through: {why}.",
        "An operator or owner can change the agent's tool policy.",
    )
