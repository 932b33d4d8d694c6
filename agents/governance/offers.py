"""Decide whether a resource may be read or a prompt used: pure (FEATURES X3, DESIGN section 2).

The first stages are those of tools: nothing is halted, the agent is on, the server is on, the agent
has it, the definition is approved as it stands, still offered and switched on. Then:

- the offer is TICKED in the binding: a pattern there means its URI, template or name (a tool
  needs no tick, these do), and
- the policy's mode is not `none`, which blocks everything.

Patterns are globs. One over a template's own text (`notes://{id}`, or `*`) ticks the template, and
its variables then never span a `/`; one over the URI that is asked for (`file:///srv/docs/*`) ticks
just what it means, and there a variable may.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal
from uuid import UUID

from agents.governance.policies import (
    Decision,
    Ruling,
    Scope,
    Stage,
    agent_stage,
    binding_stage,
    definition_stage,
    server_stage,
    verdict,
)
from bonobot.lib.sayings import say

Kind = Literal["resource", "resource_template", "prompt"]

# Means everything, so it says nothing about any URI in particular.
EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class OfferFacts:
    """Everything about a resource, template or prompt that a decision depends on.

    `own_name` is its URI, its template or its name: with the server, that is what it is. `uri` is
    what is asked for through a template. `state` is the definition's, as with tools.
    """

    kind: Kind
    own_name: str
    server_id: UUID
    server_name: str = ""
    server_enabled: bool = True
    state: str = "approved"
    enabled: bool = True
    uri: str = ""

    @property
    def source(self) -> str:
        """Whose it is: always a server's."""
        return "mcp"

    @property
    def noun(self) -> str:
        """What people call it."""
        return "prompt" if self.kind == "prompt" else "resource"

    @property
    def label(self) -> str:
        """How people name it, and only shown."""
        return self.own_name


def decide_offer(offer: OfferFacts, ruling: Ruling) -> Decision:
    """Return the decision of the first stage that refuses, or of the last one."""
    return verdict(offer_stages(offer, ruling))


def offer_stages(offer: OfferFacts, ruling: Ruling) -> Iterator[Stage]:
    """Yield every stage's own verdict, in order."""
    scope = ruling.scope(offer.server_id)
    yield agent_stage(ruling.switches)
    yield server_stage(offer.server_name, offer.server_enabled)
    yield binding_stage(offer, scope)
    yield definition_stage(offer)
    yield _ticked(offer, scope or Scope())
    yield _mode(offer, ruling.policy.mode)


def means(pattern: str, name: str) -> bool:
    """Tell whether a pattern of a binding means this URI, template or name."""
    # Compared as it is too: a URI may hold `?` and `[`, and then names itself.
    return pattern == name or fnmatchcase(name, pattern)


def spans_slashes(scope: Scope | None, uri: str) -> bool:
    """Tell whether variables may span a `/` here: a pattern over the URI itself says so."""
    patterns = scope.resources if scope else ()
    return any(one != EVERYTHING and means(one, uri) for one in patterns)


def _ticked(offer: OfferFacts, scope: Scope) -> Stage:
    patterns = scope.prompts if offer.kind == "prompt" else scope.resources
    names = [offer.own_name, offer.uri] if offer.uri else [offer.own_name]
    if (pattern := _first(patterns, names)) is not None:
        return Stage("scope", f"binding:ticked:{pattern}")
    return Stage(
        "scope",
        "binding:ticked",
        "not_ticked",
        say(
            "The agent's binding to `{server_name}` does not tick the {noun} `{uri}`.",
            server_name=offer.server_name,
            noun=offer.noun,
            uri=offer.uri or offer.label,
        ),
        say("Tick the {noun} at that server on the agent's servers tab.", noun=offer.noun),
    )


def _first(patterns: Iterable[str], names: Iterable[str]) -> str | None:
    return next((one for one in patterns if any(means(one, name) for name in names)), None)


def _mode(offer: OfferFacts, mode: str) -> Stage:
    if mode != "none":
        return Stage("policy", f"policy:{mode}")
    return Stage(
        "policy",
        "policy:none",
        "denied_by_policy",
        say(
            "The tool policy (mode `none`) does not let `{offer}` through: it blocks all.",
            offer=offer.label,
        ),
        "An operator or owner can change the agent's tool policy.",
    )
