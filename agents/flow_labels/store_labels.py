"""Flow labels of an agent's notes and workspace, left there by sessions that wrote to them.

The workspace has labels as a whole, each note has its own. People who may approve definitions can
see and clear them.
"""

from dataclasses import dataclass
from typing import Any

from agents.models import Agent, Note
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.ledger.audit.admin_changes import record_change
from mcp_servers.flow_labels import FlowLabel, decode_labels


@dataclass(frozen=True, slots=True)
class AgentStore:
    """An agent's store, `workspace` or `notes`, and the labels that reading it may add."""

    name: str
    labels: tuple[FlowLabel, ...]


def list_agent_stores(agent: Agent) -> list[AgentStore]:
    """Return an agent's stores with their current labels (2 queries)."""
    workspace_labels = (
        Agent.objects.filter(pk=agent.pk).values_list("workspace_labels", flat=True).get()
    )
    note_labels = 0
    for labels in Note.objects.filter(agent=agent.pk).values_list("labels", flat=True):
        note_labels |= labels
    return [
        AgentStore("workspace", decode_labels(workspace_labels)),
        AgentStore("notes", decode_labels(note_labels)),
    ]


def clear_agent_stores(principal: Principal, agent: Agent) -> None:
    """Clear the labels of an agent's notes and workspace, effective from the next call.

    Raises `Forbidden` without the right to approve definitions.
    """
    principal.require(Action.APPROVE_DEFINITIONS)
    details: dict[str, Any] = {}
    with record_change(
        organization_id=agent.organization_id,
        actor=principal.actor,
        action="store_labels_cleared",
        resource_type="agent",
        resource_id=str(agent.pk),
        resource_name=agent.name,
        details=details,
    ):
        details |= {store.name: [*store.labels] for store in list_agent_stores(agent)}
        Agent.objects.filter(pk=agent.pk).update(workspace_labels=0)
        Note.objects.filter(agent=agent.pk).update(labels=0)
    agent.workspace_labels = 0
