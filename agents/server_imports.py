"""Import servers from text and attach them.

The same for every surface: plan, preview, then create the valid and chosen entries. Each server is
created completely or not at all, and so is each attachment to an agent.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agents.models import Agent
from agents.services import bind, set_attachment_enabled
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, NotFound, Problem
from mcp_servers.import_export.agent_overrides import (
    TAKEN_OVER,
    AgentOverride,
    AgentServerOverride,
    ImportOverrides,
    parse_overrides,
)
from mcp_servers.import_export.import_plan import ImportChoices, PlannedServer, plan
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import add


@dataclass(frozen=True, kw_only=True)
class PlannedAttachment:
    """The planned change of one server of one agent."""

    agent: str
    share: AgentServerOverride
    action: str  # give, take, keep, refuse
    problem: Problem | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the preview for JSON."""
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
    principal: Principal, overrides: Sequence[AgentOverride], coming: Collection[str]
) -> tuple[PlannedAttachment, ...]:
    """Return the plan of `bot_overrides`; `coming` names servers of the same import."""
    return tuple(
        one for override in overrides for one in _plan_attachments(principal, override, coming)
    )


def carry_out_overrides(
    principal: Principal, planned: Sequence[PlannedAttachment]
) -> tuple[PlannedAttachment, ...]:
    """Apply the plan after the servers were created; return the result of each attachment."""
    return tuple(_apply_attachment(principal, one) for one in planned)


def _apply_attachment(principal: Principal, one: PlannedAttachment) -> PlannedAttachment:
    agent, server = _find_agent(principal, one.agent), _find_server(principal, one.share.server)
    if one.action not in ("give", "take") or agent is None:
        return one
    if server is None:  # this import should have created it, but failed to
        missing = _build_missing_error(
            "server", one.share.server, f"bot_overrides.{one.agent}", "mcp add"
        )
        return replace(one, action="refuse", problem=missing)
    try:
        if one.action == "take":
            set_attachment_enabled(principal, agent, server, enabled=False)
        else:
            share = one.share
            bind(principal, agent, server, allowed_tools=share.allowed, denied_tools=share.denied)
    except Problem as problem:
        return replace(one, action="refuse", problem=problem)
    return one


def _plan_attachments(
    principal: Principal, override: AgentOverride, coming: Collection[str]
) -> Iterator[PlannedAttachment]:
    agent = _find_agent(principal, override.agent)
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
            problem = _build_missing_error("agent", override.agent, where, "agents add")
        else:
            problem = _find_server_problem(principal, share, coming, override.agent)
        action = "refuse" if problem or agent is None else _find_action(principal, agent, share)
        yield PlannedAttachment(agent=override.agent, share=share, action=action, problem=problem)


def _find_server_problem(
    principal: Principal, share: AgentServerOverride, coming: Collection[str], agent: str
) -> Problem | None:
    if share.removed or share.server in coming or _find_server(principal, share.server):
        return None
    return _build_missing_error("server", share.server, f"bot_overrides.{agent}", "mcp add")


def _build_missing_error(kind: str, name: str, where: str, verb: str) -> NotFound:
    return NotFound(
        format_message("There is no {kind} `{name}` here.", kind=kind, name=name),
        field=where,
        remedy=format_message("Make it first: bonobot {verb} {name}", verb=verb, name=name),
    )


def _find_action(principal: Principal, agent: Agent, share: AgentServerOverride) -> str:
    server = _find_server(principal, share.server)
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


def _find_agent(principal: Principal, name: str) -> Agent | None:
    mine = Agent.objects.for_organization(principal.organization_id)
    found: Agent | None = mine.filter(slug=name).first() or mine.filter(name=name).first()
    return found


def _find_server(principal: Principal, name: str) -> Server | None:
    pool = Server.objects.for_organization(principal.organization_id).pool()
    found: Server | None = pool.filter(name=name).first() or pool.filter(slug=name).first()
    return found


@dataclass(kw_only=True)
class ServerImport:
    """A server import: its plan and, once applied, its results."""

    planned: Sequence[PlannedServer]
    wishes: ImportOverrides = field(default_factory=ImportOverrides)
    shares: Sequence[PlannedAttachment] = ()
    applied: bool = False
    added: dict[str, Server] = field(default_factory=dict)
    refused: dict[str, Problem] = field(default_factory=dict)

    @property
    def problems(self) -> bool:
        """Return whether anything in it is refused."""
        refused = any(one.problems and one.chosen for one in self.planned)
        return bool(refused or self.wishes.problems or any(s.problem for s in self.shares))

    @property
    def ready(self) -> list[PlannedServer]:
        """The entries that would be created."""
        return [one for one in self.planned if one.ready]

    def as_dict(self) -> dict[str, Any]:
        """Return the import for JSON."""
        return {
            "applied": self.applied,
            "entries": [self.entry(one) for one in self.planned],
            "overrides": [share.as_dict() for share in self.shares],
            "problems": [problem.as_dict() for problem in self.wishes.problems],
            "notices": [notice.as_dict() for notice in self.wishes.notices],
        }

    def entry(self, one: PlannedServer) -> dict[str, Any]:
        """Return one entry with its planned or actual outcome."""
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

    def became(self, one: PlannedServer) -> Server | None:
        """Return the server that was created from an entry, or None."""
        return self.added.get(one.entry.name) if one.ready else None


def plan_import(principal: Principal, text: str, choices: ImportChoices) -> ServerImport:
    """Return the plan of an import; raises `Problem` if the text can't be parsed."""
    said = parse_overrides(text)
    choices = replace(choices, taken_over=TAKEN_OVER, only_tools=said.only_tools)
    planned = plan(principal, text, choices)
    if choices.scope_id is not None:  # a private server: overrides don't apply
        return ServerImport(planned=planned, wishes=said)
    coming = {one.entry.name for one in planned if one.ready}
    return ServerImport(
        planned=planned, wishes=said, shares=plan_overrides(principal, said.overrides, coming)
    )


def carry_out(
    principal: Principal,
    found: ServerImport,
    *,
    adding: Callable[[Principal, ServerSpec], Server] = add,
) -> None:
    """Create the ready servers (with `adding`), then attach them to agents.

    Failures are collected in `refused` and in the attachments; the rest is still applied.
    """
    for one in found.ready:
        if one.spec is None:
            continue
        try:
            found.added[one.entry.name] = adding(principal, one.spec)
        except Problem as problem:  # the name was taken since the plan was made
            found.refused[one.entry.name] = problem
    found.shares = carry_out_overrides(principal, found.shares)
    found.applied = True
