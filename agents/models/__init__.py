"""Models of agents, their policies, budgets, sessions, approvals and workflows."""

from agents.models.access_requests import AccessRequest
from agents.models.agents import Agent, AgentAssignment, AgentServer, ToolName
from agents.models.approvals import Approval, SessionApproval
from agents.models.budgets import Budget
from agents.models.elicitations import ElicitationRequest
from agents.models.gateway_sessions import GatewaySessionMessage, GatewaySessionState
from agents.models.model_endpoints import ModelEndpoint
from agents.models.notes import Note
from agents.models.pending_calls import CallHandoff, DeferredCall, PendingCall
from agents.models.policies import ToolPolicy, ToolRule
from agents.models.recordings import Recording, Replay
from agents.models.saved_filters import SavedFilter
from agents.models.sessions import Blob, Inbox, Runner, Session, Step, StoredResult
from agents.models.skills import Skill, SkillVersion
from agents.models.workflows import Trigger, Workflow, WorkflowRun, WorkflowVersion

__all__ = [
    "AccessRequest",
    "Agent",
    "AgentAssignment",
    "AgentServer",
    "Approval",
    "Blob",
    "Budget",
    "CallHandoff",
    "DeferredCall",
    "ElicitationRequest",
    "GatewaySessionMessage",
    "GatewaySessionState",
    "Inbox",
    "ModelEndpoint",
    "Note",
    "PendingCall",
    "Recording",
    "Replay",
    "Runner",
    "SavedFilter",
    "Session",
    "SessionApproval",
    "Skill",
    "SkillVersion",
    "Step",
    "StoredResult",
    "ToolName",
    "ToolPolicy",
    "ToolRule",
    "Trigger",
    "Workflow",
    "WorkflowRun",
    "WorkflowVersion",
]
