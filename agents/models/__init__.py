"""Models of agents, their policies, budgets, sessions, approvals and workflows."""

from agents.models.agents import Agent, Binding, Given, Note, ToolName
from agents.models.approvals import Approval, SessionGrant
from agents.models.budgets import Budget
from agents.models.elicitations import Question
from agents.models.model_endpoints import ModelEndpoint
from agents.models.pending_calls import Exchange, Handover, Promise
from agents.models.policies import ToolPolicy, ToolRule
from agents.models.recordings import Recording, Replay
from agents.models.saved_filters import SavedFilter
from agents.models.sessions import Blob, Inbox, Runner, Session, Step, StoredResult
from agents.models.skills import Skill, SkillVersion
from agents.models.workflows import Trigger, Workflow, WorkflowRun, WorkflowVersion

__all__ = [
    "Agent",
    "Approval",
    "Binding",
    "Blob",
    "Budget",
    "Exchange",
    "Given",
    "Handover",
    "Inbox",
    "ModelEndpoint",
    "Note",
    "Promise",
    "Question",
    "Recording",
    "Replay",
    "Runner",
    "SavedFilter",
    "Session",
    "SessionGrant",
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
