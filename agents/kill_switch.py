"""The kill switch of organizations, agents and servers.

Once the switch is stored, no call and no model turn is admitted on any host. Then running sessions
are ended through their inbox, and child processes and connections are closed by their owners.
"""

from dataclasses import dataclass

from django.utils import timezone

from agents.models import Agent, Session
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from mcp_servers.models import Server

MAX_REASON_LENGTH = 500


@dataclass(frozen=True)
class KillSwitchImpact:
    """What a kill switch stops: running (or queued) and waiting sessions, agents and servers.

    `agents` and `servers` count the enabled ones.
    """

    running_sessions: int = 0
    waiting_sessions: int = 0
    agents: int = 0
    servers: int = 0

    @property
    def sessions(self) -> int:
        """The number of unfinished sessions."""
        return self.running_sessions + self.waiting_sessions

    def as_dict(self) -> dict[str, int]:
        return {
            "running_sessions": self.running_sessions,
            "waiting_sessions": self.waiting_sessions,
            "agents": self.agents,
            "servers": self.servers,
        }


def load_impact(target: Organization | Agent | Server) -> KillSwitchImpact:
    """Return what disabling this would stop (4 queries)."""
    if isinstance(target, Organization):
        agents = Agent.objects.for_organization(target.pk)
        servers = Server.objects.for_organization(target.pk)
    elif isinstance(target, Agent):
        agents = Agent.objects.filter(pk=target.pk)
        servers = Server.objects.filter(
            pk__in=target.agent_servers.filter(enabled=True).values("server")
        )
    else:
        servers = Server.objects.filter(pk=target.pk)
        agents = Agent.objects.filter(agent_servers__server=target, agent_servers__enabled=True)
    sessions = Session.objects.filter(agent__in=agents)
    return KillSwitchImpact(
        running_sessions=sessions.unfinished().count(),
        waiting_sessions=sessions.filter(status=Session.Status.WAITING).count(),
        agents=agents.enabled().count(),
        servers=servers.enabled().count(),
    )


def halt_organization(principal: Principal, reason: str = "") -> Organization:
    """Halt the principal's organization; idempotent.

    Every call and turn is refused with `kill_switch_enabled` and no session starts; running and
    waiting sessions are canceled, child processes and connections closed.
    """
    from agents.sessions.services import cancel_sessions
    from mcp_servers.close_connections import close_outdated_connections

    principal.require(Action.MANAGE_ORGANIZATION)
    organization = Organization.objects.get(pk=principal.organization_id)
    if organization.halted_at is None:
        reason = reason.strip()[:MAX_REASON_LENGTH]
        details = load_impact(organization).as_dict() | ({"reason": reason} if reason else {})
        with record_change(
            actor=principal.actor,
            action="kill_switch_enabled",
            **describe_row("organization", organization),
            details=details,
        ):
            organization.halted_at = timezone.now()
            organization.save(update_fields=["halted_at"])
            close_outdated_connections()
    # Also when it was halted before: a first attempt may have left sessions running.
    message = f"The organization was halted. {reason}".strip()
    cancel_sessions(principal, Session.objects.for_organization(organization.pk), message)
    return organization


def resume_organization(principal: Principal) -> Organization:
    """Resume the organization; canceled sessions stay canceled. Idempotent."""
    principal.require(Action.MANAGE_ORGANIZATION)
    organization = Organization.objects.get(pk=principal.organization_id)
    if organization.halted_at is not None:
        with record_change(
            actor=principal.actor,
            action="kill_switch_disabled",
            **describe_row("organization", organization),
        ):
            organization.halted_at = None
            organization.save(update_fields=["halted_at"])
    return organization
