"""Tools of the organization's address: what each declares, and what runs it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agents.models import Agent
from bonobot.gateway.inbound import Inbound
from mcp_servers.schemas import Judgement, judge

Run = Callable[[Inbound, dict[str, Any]], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What a call may do, said as it is: MCP's annotations."""

    reads: bool = False
    destroys: bool = True
    repeatable: bool = False
    reaches_out: bool = False

    def as_dict(self) -> dict[str, bool]:
        """Return them as MCP names them; the middle two mean nothing where it only reads."""
        found = {"readOnlyHint": self.reads, "openWorldHint": self.reaches_out}
        if not self.reads:
            found |= {"destructiveHint": self.destroys, "idempotentHint": self.repeatable}
        return found


READS = Hints(reads=True)


class Form:
    """What a tool takes: its input schema, judged once."""

    def __init__(self, properties: Mapping[str, Any], required: tuple[str, ...] = ()) -> None:
        self.schema: dict[str, Any] = {
            "type": "object",
            "properties": dict(properties),
            "additionalProperties": False,
        }
        if required:
            self.schema["required"] = list(required)

    @cached_property
    def judgement(self) -> Judgement:
        """How arguments may be checked against it."""
        return judge(self.schema)


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One tool: `gives` is the output schema; of the arguments `veiled` none is written down."""

    name: str
    title: str
    description: str
    takes: Form
    gives: Mapping[str, Any]
    hints: Hints
    run: Run = field(repr=False)
    agent: Agent | None = None
    veiled: frozenset[str] = frozenset()

    @property
    def declaration(self) -> dict[str, Any]:
        """The tool as MCP declares it."""
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.takes.schema,
            "outputSchema": dict(self.gives),
            "annotations": {"title": self.title, **self.hints.as_dict()},
        }


def given(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the output schema of members that are always there."""
    return {"type": "object", "properties": dict(properties), "required": list(properties)}
