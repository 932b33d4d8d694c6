"""Give agents what an imported file's `bot_overrides` say: servers, and how much of them (D2)."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agents.bindings import bind, switch_binding
from agents.models import Agent
from bonobot.lib.problems import Forbidden, NotFound, Problem
from bonobot.lib.sayings import say
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.models import Server
from mcp_servers.portability.overrides import Override, Share


@dataclass(frozen=True, kw_only=True)
class PlannedShare:
    """What would become of one server at one agent."""

    agent: str
    share: Share
    action: str  # give, take, keep, refuse
    problem: Problem | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the preview."""
        return {
            "agent": self.agent,
            "server": self.share.server,
            "line": self.share.line,
            "action": self.action,
            "allowed_tools": list(self.share.allowed),
            "denied_tools": list(self.share.denied),
            "problems": [self.problem.as_dict()] if self.problem else [],
        }


def plan_overrides(
    principal: Principal, overrides: Sequence[Override], coming: Collection[str]
) -> tuple[PlannedShare, ...]:
    """Return what would become of `bot_overrides`; `coming` names servers of the same import."""
    return tuple(one for override in overrides for one in _planned(principal, override, coming))


def carry_out_overrides(
    principal: Principal, planned: Sequence[PlannedShare]
) -> tuple[PlannedShare, ...]:
    """Do what is planned, after the servers were added; return what came of each share."""
    return tuple(_carried_out(principal, one) for one in planned)


def _carried_out(principal: Principal, one: PlannedShare) -> PlannedShare:
    agent, server = _agent(principal, one.agent), _server(principal, one.share.server)
    if one.action not in ("give", "take") or agent is None:
        return one
    if server is None:  # it was to come with this import, and didn't
        missing = _missing("server", one.share.server, f"bot_overrides.{one.agent}", "mcp add")
        return replace(one, action="refuse", problem=missing)
    try:
        if one.action == "take":
            switch_binding(principal, agent, server, enabled=False)
        else:
            share = one.share
            bind(principal, agent, server, allowed_tools=share.allowed, denied_tools=share.denied)
    except Problem as problem:
        return replace(one, action="refuse", problem=problem)
    return one


def _planned(
    principal: Principal, override: Override, coming: Collection[str]
) -> Iterator[PlannedShare]:
    agent = _agent(principal, override.agent)
    for share in override.shares:
        if not principal.may(Action.MANAGE_AGENTS):
            problem: Problem | None = Forbidden(
                "Giving servers to agents is not for your role.",
                field=f"bot_overrides.{override.agent}",
                rule=f"role:{Action.MANAGE_AGENTS}",
                remedy="Ask an operator to import the part about bots.",
            )
        elif agent is None:
            where = f"bot_overrides.{override.agent}"
            problem = _missing("agent", override.agent, where, "agents add")
        else:
            problem = _no_server(principal, share, coming, override.agent)
        action = "refuse" if problem or agent is None else _action(principal, agent, share)
        yield PlannedShare(agent=override.agent, share=share, action=action, problem=problem)


def _no_server(
    principal: Principal, share: Share, coming: Collection[str], agent: str
) -> Problem | None:
    if share.removed or share.server in coming or _server(principal, share.server):
        return None
    return _missing("server", share.server, f"bot_overrides.{agent}", "mcp add")


def _missing(kind: str, name: str, where: str, verb: str) -> NotFound:
    return NotFound(
        say("There is no {kind} `{name}` here.", kind=kind, name=name),
        field=where,
        remedy=say("Make it first: bonobot {verb} {name}", verb=verb, name=name),
    )


def _action(principal: Principal, agent: Agent, share: Share) -> str:
    server = _server(principal, share.server)
    binding = agent.bindings.filter(server=server).first() if server else None
    if share.removed:
        return "take" if binding is not None and binding.enabled else "keep"
    wanted = (True, list(share.allowed), list(share.denied))
    if binding is not None and wanted == (
        binding.enabled,
        binding.allowed_tools,
        binding.denied_tools,
    ):
        return "keep"
    return "give"


def _agent(principal: Principal, name: str) -> Agent | None:
    mine = Agent.objects.for_organization(principal.organization_id)
    found: Agent | None = mine.filter(slug=name).first() or mine.filter(name=name).first()
    return found


def _server(principal: Principal, name: str) -> Server | None:
    pool = Server.objects.for_organization(principal.organization_id).pool()
    found: Server | None = pool.filter(name=name).first() or pool.filter(slug=name).first()
    return found
