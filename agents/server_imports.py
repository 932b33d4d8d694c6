"""Import servers from text and attach them.

The same for every surface: plan, preview, then create the valid and chosen entries. Each server is
created completely or not at all, and so is each attachment to an agent.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agents.models import Agent, AgentServer
from agents.services import attach_server, require_attachable, set_attachment_enabled
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, NotFound, Problem
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.discovery import DiscoveryAttempt, discover_servers
from mcp_servers.import_export.agent_overrides import (
    OVERRIDE_FIELDS,
    AgentOverride,
    AgentServerOverride,
    ImportOverrides,
    parse_overrides,
)
from mcp_servers.import_export.import_plan import ImportChoices, PlannedServer, plan_servers
from mcp_servers.models import Server
from mcp_servers.presets.services import link_preset
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server


@dataclass(frozen=True, kw_only=True)
class PlannedAttachment:
    """The planned change of one server of one agent."""

    agent: str
    share: AgentServerOverride
    action: str  # attach, detach, unchanged, invalid
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
    principal: Principal, overrides: Sequence[AgentOverride], new_server_names: Collection[str]
) -> tuple[PlannedAttachment, ...]:
    """Return the plan of `bot_overrides`; `coming` names servers of the same import."""
    return tuple(
        attachment
        for override in overrides
        for attachment in _plan_attachments(principal, override, new_server_names)
    )


def apply_overrides(
    principal: Principal,
    planned_attachments: Sequence[PlannedAttachment],
    created_servers: Collection[Server],
) -> tuple[PlannedAttachment, ...]:
    """Apply the plan after the servers were created; return the result of each attachment."""
    return tuple(
        _apply_attachment(principal, attachment, created_servers)
        for attachment in planned_attachments
    )


def _apply_attachment(
    principal: Principal, attachment: PlannedAttachment, created_servers: Collection[Server]
) -> PlannedAttachment:
    agent, server = (
        _find_agent(principal, attachment.agent),
        _find_server(principal, attachment.share.server),
    )
    if attachment.action not in ("attach", "detach") or agent is None:
        return attachment
    if server is None:  # this import should have created it, but failed to
        missing = _build_missing_error(
            "server", attachment.share.server, f"bot_overrides.{attachment.agent}", "mcp add"
        )
        return replace(attachment, action="invalid", problem=missing)
    try:
        if attachment.action == "detach":
            set_attachment_enabled(principal, agent, server, enabled=False)
        else:
            attached_server = agent.agent_servers.filter(server=server).first()
            allowed_tools, denied_tools = _get_wanted_lists(attachment.share, attached_server)
            attach_server(
                principal,
                agent,
                server,
                allowed_tools=allowed_tools,
                denied_tools=denied_tools,
                allows_disabled=server in created_servers,
            )
    except Problem as problem:
        return replace(attachment, action="invalid", problem=problem)
    return attachment


def _plan_attachments(
    principal: Principal, override: AgentOverride, new_server_names: Collection[str]
) -> Iterator[PlannedAttachment]:
    agent = _find_agent(principal, override.agent)
    for server_override in override.server_overrides:
        if not principal.may(Action.MANAGE_AGENTS):
            problem: Problem | None = Forbidden(
                "Your role can't attach servers to agents.",
                field=f"bot_overrides.{override.agent}",
                rule=f"role:{Action.MANAGE_AGENTS}",
                remedy="Ask an operator to import the `bot_overrides` section.",
            )
        elif agent is None:
            field_path = f"bot_overrides.{override.agent}"
            problem = _build_missing_error("agent", override.agent, field_path, "agents add")
        else:
            problem = _find_server_problem(principal, server_override, new_server_names, agent)
        action = (
            "invalid"
            if problem or agent is None
            else _find_action(principal, agent, server_override)
        )
        yield PlannedAttachment(
            agent=override.agent, share=server_override, action=action, problem=problem
        )


def _find_server_problem(
    principal: Principal,
    server_override: AgentServerOverride,
    new_server_names: Collection[str],
    agent: Agent,
) -> Problem | None:
    if server_override.removed or server_override.server in new_server_names:
        return None
    field_path = f"bot_overrides.{agent.slug}"
    server = _find_server(principal, server_override.server)
    if server is None:
        return _build_missing_error("server", server_override.server, field_path, "mcp add")
    if not agent.agent_servers.filter(server=server).exists():
        try:
            require_attachable(server)
        except Problem as problem:
            problem.field = field_path
            return problem
    return None


def _build_missing_error(kind: str, name: str, field_path: str, verb: str) -> NotFound:
    return NotFound(
        format_message("The {kind} `{name}` doesn't exist.", kind=kind, name=name),
        field=field_path,
        remedy=format_message("Create it first: bonobot {verb} {name}", verb=verb, name=name),
    )


def _find_action(principal: Principal, agent: Agent, server_override: AgentServerOverride) -> str:
    server = _find_server(principal, server_override.server)
    attached_server = agent.agent_servers.filter(server=server).first() if server else None
    if server_override.removed:
        return "detach" if attached_server is not None and attached_server.enabled else "unchanged"
    wanted_values = (True, *_get_wanted_lists(server_override, attached_server))
    if attached_server is not None and wanted_values == (
        attached_server.enabled,
        attached_server.allowed_tools,
        attached_server.denied_tools,
    ):
        return "unchanged"
    return "attach"


def _get_wanted_lists(
    server_override: AgentServerOverride, attached_server: AgentServer | None
) -> tuple[list[str], list[str]]:
    """Return the allowed and denied tools; an override that names none keeps the current ones."""
    names_tools = server_override.allowed or server_override.denied
    if attached_server is not None and not names_tools:
        return attached_server.allowed_tools, attached_server.denied_tools
    return list(server_override.allowed), list(server_override.denied)


def _find_agent(principal: Principal, name: str) -> Agent | None:
    agents = Agent.objects.for_organization(principal.organization_id)
    agent: Agent | None = agents.filter(slug=name).first() or agents.filter(name=name).first()
    return agent


def _find_server(principal: Principal, name: str) -> Server | None:
    pool = Server.objects.for_organization(principal.organization_id).in_organization_pool()
    server: Server | None = pool.filter(name=name).first() or pool.filter(slug=name).first()
    return server


@dataclass(kw_only=True)
class ServerImport:
    """A server import: its plan and, once applied, its results.

    `attempts` has the discoveries of added servers that the caller waited for.
    """

    planned: Sequence[PlannedServer]
    overrides: ImportOverrides = field(default_factory=ImportOverrides)
    shares: Sequence[PlannedAttachment] = ()
    applied: bool = False
    added: dict[str, Server] = field(default_factory=dict)
    problems_by_name: dict[str, Problem] = field(default_factory=dict)
    attempts: dict[str, DiscoveryAttempt] = field(default_factory=dict)

    @property
    def problems(self) -> bool:
        """Return whether anything in it is refused."""
        has_refused_entry = any(
            planned_server.problems and planned_server.chosen for planned_server in self.planned
        )
        return bool(
            has_refused_entry
            or self.overrides.problems
            or any(attachment.problem for attachment in self.shares)
        )

    @property
    def ready(self) -> list[PlannedServer]:
        """The entries that would be created."""
        return [planned_server for planned_server in self.planned if planned_server.ready]

    def as_dict(self) -> dict[str, Any]:
        return {
            "applied": self.applied,
            "entries": [self.describe_entry(planned_server) for planned_server in self.planned],
            "overrides": [attachment.as_dict() for attachment in self.shares],
            "problems": [problem.as_dict() for problem in self.overrides.problems],
            "notices": [notice.as_dict() for notice in self.overrides.notices],
        }

    def describe_entry(self, planned_server: PlannedServer) -> dict[str, Any]:
        """Return one entry with its planned or actual outcome."""
        name = planned_server.entry.name
        data = planned_server.as_dict() | {
            "allowed_tools": list(self.overrides.only_tools.get(name, ())),
            "server_id": None,
            "discovery": None,
        }
        if (server := self.find_server(planned_server)) is not None:
            data |= {"action": "added", "server_id": str(server.pk)}
        elif planned_server.ready and (problem := self.problems_by_name.get(name)) is not None:
            data |= {"action": "refuse", "problems": [problem.as_dict()]}
        if (attempt := self.attempts.get(name)) is not None:
            data["discovery"] = attempt.as_dict()
        return data

    def list_enabled_servers(self) -> list[Server]:
        """Return the added servers that can be discovered."""
        return [server for server in self.added.values() if server.enabled]

    def record_attempt(self, attempt: DiscoveryAttempt) -> None:
        """Store a discovery with the number of definitions that are still pending review."""
        pending_review = attempt.server.definitions.awaiting_review().count()
        self.attempts[attempt.server.name] = replace(attempt, pending_review=pending_review)

    def find_server(self, planned_server: PlannedServer) -> Server | None:
        """Return the server that was created from an entry, or None."""
        return self.added.get(planned_server.entry.name) if planned_server.ready else None


def plan_import(principal: Principal, text: str, choices: ImportChoices) -> ServerImport:
    """Return the plan of an import; raises `Problem` if the text can't be parsed."""
    overrides = parse_overrides(text)
    choices = replace(choices, known_fields=OVERRIDE_FIELDS, only_tools=overrides.only_tools)
    planned_servers = plan_servers(principal, text, choices)
    if choices.scope_id is not None:  # a private server: overrides don't apply
        return ServerImport(planned=planned_servers, overrides=overrides)
    new_server_names = {
        planned_server.entry.name for planned_server in planned_servers if planned_server.ready
    }
    return ServerImport(
        planned=planned_servers,
        overrides=overrides,
        shares=plan_overrides(principal, overrides.overrides, new_server_names),
    )


def apply_import(
    principal: Principal,
    server_import: ServerImport,
    *,
    create: Callable[[Principal, ServerSpec], Server] = create_server,
) -> None:
    """Create the ready servers (with `adding`), then attach them to agents.

    Failures are collected in `refused` and in the attachments; the rest is still applied.
    """
    for planned_server in server_import.ready:
        if planned_server.spec is None:
            continue
        try:
            server = create(principal, planned_server.spec)
            server_import.added[planned_server.entry.name] = server
            link_preset(principal, server, planned_server.entry.preset)
        except Problem as problem:  # the name was taken since the plan was made
            server_import.problems_by_name[planned_server.entry.name] = problem
    server_import.shares = apply_overrides(
        principal, server_import.shares, server_import.added.values()
    )
    server_import.applied = True


def approve_added_servers(principal: Principal, server_import: ServerImport) -> None:
    """Discover the added servers at once and approve their definitions, except suspicious ones.

    A failed discovery is recorded in `attempts` and in the server's status.
    """
    servers = server_import.list_enabled_servers()
    for attempt in discover_servers(servers, actor=principal.actor):
        if attempt.problem is None:
            approve_definitions(principal, attempt.server)
        server_import.record_attempt(attempt)
