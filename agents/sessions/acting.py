"""Acting: who makes a session's calls and asks its model."""

from agents.models import Session
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Role


def principal_of(session: Session) -> Principal:
    """Return who a session acts as: with the rights of a member, for who started it."""
    return Principal(
        kind="session",
        id=str(session.pk),
        label=session.started_by,
        organization_id=session.organization_id,
        role=Role.MEMBER,
        agent_ids=frozenset({session.agent_id}),
        token_id=session.token_id,
    )
