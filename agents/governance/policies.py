"""Decide whether a tool may be called: pure, over plain facts (FEATURES A8, DESIGN section 2).

The order is fixed. The first stage that refuses is the answer; where none does, a stage that asks
makes it a question to a person:

1. the organization is not halted, and the agent is switched on,
2. the server is switched on,
3. the agent has the server (a binding, switched on), or was given the built-in tool,
4. the definition is approved as it stands, still offered, and switched on,
5. the binding's own lists (a denied tool is denied whatever else says),
6. the organization's rules: what they deny is denied to every agent, what they ask about is asked,
7. the agent's policy: `none` blocks all, `allowlist` lets through what an allow or ask rule names
   (and no deny rule), `denylist` and `all` what no deny rule names; an ask rule asks in each mode
   but `none`.

Deny goes before ask, ask before allow. A tool is its server plus the server's own name for it.
Names that an agent or a gateway shows play no part, so renaming, wrapping or a look-alike never
changes a decision.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Protocol
from uuid import UUID

from agents.governance.rules import Arguments, Policy, Rule
from bonobot.lib.sayings import say

UNRULED = Policy("all")


@dataclass(frozen=True, slots=True)
class Switches:
    """What stops everything: the organization's kill switch and the agent's."""

    organization: bool = True
    agent: bool = True


ON = Switches()


@dataclass(frozen=True, slots=True)
class Scope:
    """What a binding lets through of its server; None in place of a scope means: not bound.

    No `allowed` means every tool; no `resources` or `prompts` means none of them.
    """

    enabled: bool = True
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ruling:
    """All that decides about the calls of one agent, or about those without an agent.

    `policy` is the agent's (or the organization's, without an agent), `organization` what the
    organization rules for every agent, `scopes` what each bound server's binding lets through.
    """

    policy: Policy = field(default_factory=Policy)
    organization: Policy = UNRULED
    switches: Switches = ON
    scopes: Mapping[UUID, Scope] = field(default_factory=dict)

    def scope(self, server_id: UUID | None) -> Scope | None:
        """Return the scope of a server; None: the agent doesn't have it."""
        return self.scopes.get(server_id) if server_id else None

    def rules_about(self, tool: "ToolFacts") -> tuple[Rule, ...]:
        """Return the rules that could have a say about a tool, whatever its arguments."""
        what = tool.source, tool.server_id, tool.own_name
        return (*self.organization.about(*what), *self.policy.about(*what))


class Facts(Protocol):
    """What the stages need that tools and other offers have in common."""

    @property
    def noun(self) -> str:
        """What people call it: tool, resource or prompt; refusal codes begin with it."""

    @property
    def label(self) -> str:
        """How people name it, and only shown."""

    @property
    def server_name(self) -> str:
        """The name of its server."""

    @property
    def state(self) -> str:
        """The state of its definition."""

    @property
    def enabled(self) -> bool:
        """Whether the definition is switched on."""


@dataclass(frozen=True, slots=True)
class ToolFacts:
    """Everything about a tool that a decision depends on.

    `state` is the definition's (`approved`, `pending`, `changed`, `refused`, `gone`), or
    `instructions_changed` where its server's wait for a review; built-in tools are always
    `approved`. `label` is how people name the tool, and only shown. `kit` names
    the built-in tools that it belongs to, and `granted` says whether the agent was given it.
    """

    source: str
    own_name: str
    label: str
    server_id: UUID | None = None
    server_name: str = ""
    server_enabled: bool = True
    state: str = "approved"
    enabled: bool = True
    kit: str = ""
    granted: bool = True

    @property
    def noun(self) -> str:
        """What people call it."""
        return "tool"


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage's verdict; `code` is empty where it lets the call through, or asks a person."""

    name: str
    rule: str
    code: str = ""
    reason: str = ""
    remedy: str = ""
    asks: bool = False

    @property
    def allows(self) -> bool:
        """Tell whether this stage lets the call through, if need be with a person's yes."""
        return not self.code


@dataclass(frozen=True, slots=True)
class Decision:
    """Allow, ask or deny, the rule that made it, and what to do next."""

    verdict: str
    rule: str
    code: str = ""
    reason: str = ""
    remedy: str = ""

    @property
    def allowed(self) -> bool:
        """Tell whether the call may go on by itself."""
        return self.verdict == "allow"

    @property
    def offered(self) -> bool:
        """Tell whether the tool is there to be called, be it with a person's yes."""
        return self.verdict != "deny"


_DEFINITION_REFUSALS = {
    "pending": (
        "not_approved",
        partial(say, "The {noun} `{label}` waits for approval."),
        say("Someone who may approve definitions reads it and approves it."),
    ),
    "changed": (
        "definition_changed",
        partial(say, "The server changed the {noun} `{label}` since it was approved."),
        say("Someone who may approve definitions compares and approves the change."),
    ),
    "instructions_changed": (
        "definition_changed",
        partial(say, "The server of the {noun} `{label}` changed its instructions."),
        say("Someone who may approve definitions compares and approves the new instructions."),
    ),
    "refused": (
        "definition_refused",
        partial(say, "The declaration of the {noun} `{label}` can't be used."),
        say("Its page says why; the server has to change it."),
    ),
    "gone": (
        "{noun}_gone",
        partial(say, "The server no longer offers the {noun} `{label}`."),
        say("Refresh the server, or use another one."),
    ),
}


def decide(
    tool: ToolFacts,
    ruling: Ruling,
    arguments: Arguments | None = None,
) -> Decision:
    """Return what all stages come to; without `arguments`, what they might come to."""
    return verdict(stages(tool, ruling, arguments))


def verdict(found: Iterable[Stage]) -> Decision:
    """Return what the stages decide: the first that refuses, else the first that asks."""
    last, asking = Stage("policy", "policy:none"), None
    for stage in found:
        if not stage.allows:
            return Decision("deny", stage.rule, stage.code, stage.reason, stage.remedy)
        if stage.asks and asking is None:
            asking = stage
        last = stage
    if asking is None:
        return Decision("allow", last.rule)
    return Decision("ask", asking.rule, "approval_required", asking.reason, asking.remedy)


def stages(tool: ToolFacts, ruling: Ruling, arguments: Arguments | None = None) -> Iterator[Stage]:
    """Yield every stage's own verdict, in order."""
    scope = ruling.scope(tool.server_id)
    yield agent_stage(ruling.switches)
    yield server_stage(tool.server_name, tool.server_enabled)
    yield _kit_stage(tool) if tool.source == "builtin" else binding_stage(tool, scope)
    yield definition_stage(tool)
    yield _binding_lists(tool, scope)
    yield _organization(tool, ruling.organization, arguments)
    yield _policy(tool, ruling.policy, arguments)


def agent_stage(switches: Switches) -> Stage:
    """Say whether the organization runs, and the agent is switched on."""
    if not switches.organization:
        return Stage(
            "organization",
            "organization:halted",
            "organization_halted",
            "Everything in this organization is halted.",
            "An owner can let it go on.",
        )
    return _switch("agent", switches.agent, "agent_disabled", "This agent is switched off.")


def server_stage(name: str, enabled: bool) -> Stage:
    """Say whether the server is switched on."""
    return _switch(
        "server", enabled, "server_disabled", say("The server `{name}` is switched off.", name=name)
    )


def _switch(name: str, on: bool, code: str, reason: str) -> Stage:
    if on:
        return Stage(name, f"{name}:enabled")
    return Stage(name, f"{name}:enabled", code, reason, "An operator or owner can switch it on.")


def binding_stage(facts: Facts, scope: Scope | None) -> Stage:
    """Say whether the agent has the server, switched on."""
    if scope is not None and scope.enabled:
        return Stage("binding", "binding:enabled")
    reason = say(
        "The agent does not have the server `{server_name}`.", server_name=facts.server_name
    )
    if scope is not None:
        reason = say(
            "The server `{server_name}` is switched off for this agent.",
            server_name=facts.server_name,
        )
    return Stage(
        "binding", "binding:enabled", "not_bound", reason, "Give the agent the server first."
    )


def _kit_stage(tool: ToolFacts) -> Stage:
    """Say whether the agent was given the built-in tools that this one belongs to."""
    if tool.granted:
        return Stage("binding", "binding:enabled")
    return Stage(
        "binding",
        f"builtin:{tool.kit}",
        "builtin_off",
        say("The agent was not given the built-in tool `{tool}`.", tool=tool.own_name),
        say(
            "Switch `{kit}` on, with what it needs, on the agent's page Built-in tools.",
            kit=tool.kit,
        ),
    )


def definition_stage(facts: Facts) -> Stage:
    """Say whether the definition is approved as it stands, still offered, and switched on."""
    if refusal := _DEFINITION_REFUSALS.get(facts.state):
        code, words, remedy = refusal
        reason = words(noun=facts.noun, label=facts.label)
        code = code.replace("{noun}", facts.noun)
        return Stage("definition", f"definition:{facts.state}", code, reason, remedy)
    if not facts.enabled:
        return Stage(
            "definition",
            "definition:switch",
            f"{facts.noun}_disabled",
            say(
                "The {noun} `{facts}` is switched off.",
                noun=facts.noun,
                facts=facts.label,
            ),
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
        say(
            "The agent's binding to `{server_name}` leaves out `{tool}`.",
            server_name=tool.server_name,
            tool=tool.label,
        ),
        "Change the chosen tools of that server on the agent's servers tab.",
    )


def _organization(tool: ToolFacts, policy: Policy, arguments: Arguments | None) -> Stage:
    found = _Matching(tool, policy, arguments)
    if found.deny is not None:
        return Stage(
            "organization",
            f"organization:{found.deny}",
            "denied_by_organization",
            say(
                "The organization's rule `{deny}` denies `{tool}` to every agent.",
                deny=found.deny,
                tool=tool.label,
            ),
            "An owner can change the organization's rules.",
        )
    if found.ask is not None:
        return _asking("organization", f"organization:{found.ask}", tool)
    return Stage("organization", "organization:none")


def _policy(tool: ToolFacts, policy: Policy, arguments: Arguments | None) -> Stage:
    found = _Matching(tool, policy, arguments)
    rule = f"policy:{policy.mode}"
    listed = policy.mode in ("denylist", "all") or found.ask or found.allow
    if policy.mode != "none" and found.deny is None and listed:
        if found.ask is not None:
            return _asking("policy", f"{rule}:{found.ask}", tool)
        return Stage("policy", f"{rule}:{found.allow}" if policy.mode == "allowlist" else rule)
    why = {"allowlist": "no rule allows it"}.get(policy.mode, "the mode blocks every tool")
    if found.deny is not None and policy.mode != "none":
        rule, why = f"{rule}:{found.deny}", f"the rule `{found.deny}` denies it"
    return Stage(
        "policy",
        rule,
        "denied_by_policy",
        say(
            "The tool policy (mode `{mode}`) does not let `{tool}` through: {why}.",
            mode=policy.mode,
            tool=tool.label,
            why=why,
        ),
        "An operator or owner can change the agent's tool policy.",
    )


class _Matching:
    """The first rule of each effect that is about a tool and holds for its arguments."""

    def __init__(self, tool: ToolFacts, policy: Policy, arguments: Arguments | None) -> None:
        self.allow: Rule | None = None
        self.ask: Rule | None = None
        self.deny: Rule | None = None
        for rule in policy.about(tool.source, tool.server_id, tool.own_name):
            if getattr(self, rule.effect) is None and rule.holds(arguments):
                setattr(self, rule.effect, rule)


def _asking(stage: str, rule: str, tool: ToolFacts) -> Stage:
    return Stage(
        stage,
        rule,
        reason=say(
            "The rule `{rule}` wants a person's yes for `{tool}`.",
            rule=rule.partition(":")[2],
            tool=tool.label,
        ),
        remedy="Someone who may approve calls answers it in the approvals inbox.",
        asks=True,
    )
