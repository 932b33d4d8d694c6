"""Rows of agents: who they are, what they may, what they spend, and what they did."""

from agents.models.agents import Agent, ModelEndpoint
from agents.models.approvals import Approval, SessionGrant
from agents.models.bindings import Binding, ToolName
from agents.models.budgets import Budget
from agents.models.policies import ToolPolicy, ToolRule
from agents.models.results import Blob, StoredResult
from agents.models.sessions import Inbox, Runner, Session, Step

__all__ = [
    "Agent",
    "Approval",
    "Binding",
    "Blob",
    "Budget",
    "Inbox",
    "ModelEndpoint",
    "Runner",
    "Session",
    "SessionGrant",
    "Step",
    "StoredResult",
    "ToolName",
    "ToolPolicy",
    "ToolRule",
]
