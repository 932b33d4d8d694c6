"""Offerings: what a place offers, and how it answers; one for each kind of place.

An agent's tools and a server's are relayed; the organization's own are `bots`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agents.people import person_behind
from bonobot.gateway.inbound import Inbound
from bonobot.gateway.relaying import Relaying
from bonobot.gateway.shelves import Declaration, shelf
from bonobot.gateway.visitors import Visitor
from bonobot.lib.runtime import runtime

Kind = Literal["tools", "resources", "templates", "prompts"]


@dataclass(frozen=True)
class Greeting:
    """What a client is told before anything else: what it may use here, and how."""

    capabilities: Mapping[str, Any]
    instructions: str


class Offering(Protocol):
    """What is offered at a place; each raises `MCPError` for what isn't there."""

    async def greet(self, inbound: Inbound) -> Greeting:
        """Say what may be used."""
        ...

    async def listed(self, visitor: Visitor, kind: Kind) -> tuple[Declaration, ...]:
        """Return the declarations of one kind, in a stable order."""
        ...

    async def call_tool(self, inbound: Inbound) -> dict[str, Any]:
        """Answer `tools/call`."""
        ...

    async def read_resource(self, inbound: Inbound) -> dict[str, Any]:
        """Answer `resources/read`."""
        ...

    async def get_prompt(self, inbound: Inbound) -> dict[str, Any]:
        """Answer `prompts/get`."""
        ...

    async def complete(self, inbound: Inbound) -> dict[str, Any]:
        """Answer `completion/complete`."""
        ...


class Relayed(Relaying):
    """What servers offer, as the snapshot of its place has it (one query)."""

    async def greet(self, inbound: Inbound) -> Greeting:
        """Say what the servers can do, of what is handed on."""
        place = inbound.visitor.place
        there = shelf(place, await runtime().orm(place.snapshot))
        person = person_behind(inbound.visitor.principal, None) is not None
        return Greeting(there.to_people if person else there.capabilities, there.instructions)

    async def listed(self, visitor: Visitor, kind: Kind) -> tuple[Declaration, ...]:
        """Return the declarations of one kind."""
        place = visitor.place
        there = shelf(place, await runtime().orm(place.snapshot))
        found: tuple[Declaration, ...] = getattr(there, kind)
        return found
