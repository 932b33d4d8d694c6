"""Rows of agents: who they are, what they may, what they spend, and what they did."""

from agents.models.agents import Agent, ModelEndpoint
from agents.models.approvals import Approval, SessionGrant
from agents.models.bindings import Binding, ToolName
from agents.models.budgets import Budget
from agents.models.exchanges import Exchange, Question
from agents.models.handovers import Handover
from agents.models.notes import Note
from agents.models.policies import ToolPolicy, ToolRule
from agents.models.promises import Promise
from agents.models.recordings import Recording, Replay
from agents.models.results import Blob, StoredResult
from agents.models.saved_filters import SavedFilter
from agents.models.sessions import Inbox, Runner, Session, Step
from agents.models.skills import Given, Skill, SkillVersion
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
