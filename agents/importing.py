"""Import: servers of a text, the tools that they are kept to, and what each agent gets (B1, D2).

The same for every surface: plan, show, then add what holds as the person chose. Each server is
added whole or not at all, and so is each agent's share of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agents.overrides import PlannedShare, carry_out_overrides, plan_overrides
from bonobot.lib.problems import Problem
from bonobot.tenancy.principals import Principal
from mcp_servers.configuration import ServerSpec
from mcp_servers.importing import Choices, Planned, plan
from mcp_servers.models import Server
from mcp_servers.portability.overrides import TAKEN_OVER, Wishes, wishes
from mcp_servers.registration import add


@dataclass(kw_only=True)
class Import:
    """An import from its reading to its end."""

    planned: Sequence[Planned]
    wishes: Wishes = field(default_factory=Wishes)
    shares: Sequence[PlannedShare] = ()
    applied: bool = False
    added: dict[str, Server] = field(default_factory=dict)
    refused: dict[str, Problem] = field(default_factory=dict)

    @property
    def problems(self) -> bool:
        """Tell whether anything of it is refused."""
        refused = any(one.problems and one.chosen for one in self.planned)
        return bool(refused or self.wishes.problems or any(s.problem for s in self.shares))

    @property
    def ready(self) -> list[Planned]:
        """The entries that would be added."""
        return [one for one in self.planned if one.ready]

    def as_dict(self) -> dict[str, Any]:
        """Return everything that programs want to know of it."""
        return {
            "applied": self.applied,
            "entries": [self.entry(one) for one in self.planned],
            "overrides": [share.as_dict() for share in self.shares],
            "problems": [problem.as_dict() for problem in self.wishes.problems],
            "notices": [notice.as_dict() for notice in self.wishes.notices],
        }

    def entry(self, one: Planned) -> dict[str, Any]:
        """Return one entry: what would become, or became, of it."""
        name = one.entry.name
        shown = one.as_dict() | {
            "allowed_tools": list(self.wishes.only_tools.get(name, ())),
            "server_id": None,
        }
        if (server := self.became(one)) is not None:
            shown |= {"action": "added", "server_id": str(server.pk)}
        elif one.ready and (problem := self.refused.get(name)) is not None:
            shown |= {"action": "refuse", "problems": [problem.as_dict()]}
        return shown

    def became(self, one: Planned) -> Server | None:
        """Return the server that an entry became; another entry of its name became none."""
        return self.added.get(one.entry.name) if one.ready else None


def plan_import(principal: Principal, text: str, choices: Choices) -> Import:
    """Return what would become of a text; raises `Problem` when it can't be read at all."""
    said = wishes(text)
    choices = replace(choices, taken_over=TAKEN_OVER, only_tools=said.only_tools)
    planned = plan(principal, text, choices)
    if choices.scope_id is not None:  # one agent's own servers: the file's bots are others
        return Import(planned=planned, wishes=said)
    coming = {one.entry.name for one in planned if one.ready}
    return Import(
        planned=planned, wishes=said, shares=plan_overrides(principal, said.overrides, coming)
    )


def carry_out(
    principal: Principal,
    found: Import,
    *,
    adding: Callable[[Principal, ServerSpec], Server] = add,
) -> None:
    """Add what is ready (to the pool, or as `adding` does), then give agents their shares.

    What fails is told in `refused` and in the shares; the rest is done all the same.
    """
    for one in found.ready:
        if one.spec is None:
            continue
        try:
            found.added[one.entry.name] = adding(principal, one.spec)
        except Problem as problem:  # somebody took the name since the plan was made
            found.refused[one.entry.name] = problem
    found.shares = carry_out_overrides(principal, found.shares)
    found.applied = True
