"""URLs of the REST resources of agents, below /api/."""

from agents.api import (
    access_requests,
    agent_servers,
    agent_tools,
    agents,
    approvals,
    budgets,
    elicitations,
    flow_labels,
    model_endpoints,
    notes,
    organization,
    policies,
    policy_simulations,
    recordings,
    server_calls,
    server_imports,
    sessions,
    skills,
    triggers,
    workflows,
)
from bonobot.accounts.api import external_issuers, invitations, tokens
from bonobot.accounts.api.resource_view import build_url_patterns

SKILL = "skills/<str:skill_id>"
WORKFLOW = "workflows/<str:workflow_id>"
TRIGGER = f"{WORKFLOW}/triggers/<str:trigger_id>"
RUN = "workflow-runs/<str:run_id>"
RECORDING = "recordings/<str:recording_id>"
REPLAYS = f"{RECORDING}/replays"
AGENT = "agents/<str:agent_id>"
SERVER = f"{AGENT}/mcp-servers/<str:server_id>"
ORGANIZATION_POLICY = "tool-policy"
POLICY = f"{AGENT}/tool-policy"
TOOL = f"{AGENT}/tools/<str:name>"
SESSION = "sessions/<str:session_id>"
ACCESS_REQUEST = "access-requests/<str:access_request_id>"
APPROVAL = "approvals/<str:approval_id>"
ELICITATION = "elicitation-requests/<str:request_id>"
SESSION_APPROVALS = f"{SESSION}/approvals"
ISSUER = "external-issuers/<str:issuer_id>"
ENDPOINT = "model-endpoints/<str:endpoint_id>"

urlpatterns = build_url_patterns(
    {
        "workflows": workflows.WorkflowListView,
        WORKFLOW: workflows.WorkflowDetailView,
        f"{WORKFLOW}/versions": workflows.WorkflowVersionListView,
        f"{WORKFLOW}/approve": workflows.ApproveWorkflowView,
        f"{WORKFLOW}/runs": workflows.WorkflowRunListView,
        f"{WORKFLOW}/triggers": triggers.TriggerListView,
        TRIGGER: triggers.TriggerDetailView,
        f"{TRIGGER}/secret": triggers.RotateTriggerSecretView,
        "hooks/<str:hook_id>": triggers.WebhookView,
        RUN: workflows.WorkflowRunDetailView,
        f"{RUN}/cancel": workflows.CancelWorkflowRunView,
        "recordings": recordings.RecordingListView,
        RECORDING: recordings.RecordingDetailView,
        REPLAYS: recordings.RecordingReplayListView,
        f"{REPLAYS}/<str:replay_id>": recordings.RecordingReplayDetailView,
        f"{AGENT}/callable-agents": agents.CallableAgentsView,
        "skills": skills.SkillListView,
        SKILL: skills.SkillDetailView,
        f"{SKILL}/versions": skills.SkillVersionListView,
        f"{SKILL}/render": skills.RenderSkillView,
        f"{SKILL}/run": skills.RunSkillView,
        f"{AGENT}/notes": notes.AgentNoteListView,
        f"{AGENT}/notes/<str:note_id>": notes.AgentNoteDetailView,
        "organization": organization.OrganizationDetailView,
        "organization/halt": organization.HaltOrganizationView,
        "organization/resume": organization.ResumeOrganizationView,
        ORGANIZATION_POLICY: policies.OrganizationPolicyView,
        f"{ORGANIZATION_POLICY}/simulate": policy_simulations.SimulateOrganizationPolicyView,
        f"{ORGANIZATION_POLICY}/draft": policy_simulations.OrganizationDraftView,
        f"{ORGANIZATION_POLICY}/draft/shadow": policy_simulations.OrganizationDraftSummaryView,
        f"{ORGANIZATION_POLICY}/draft/enforce": policy_simulations.EnforceOrganizationDraftView,
        "agents": agents.AgentListView,
        AGENT: agents.AgentDetailView,
        f"{AGENT}/mcp-servers": agent_servers.AgentServerListView,
        SERVER: agent_servers.AgentServerDetailView,
        f"{SERVER}/test": agent_servers.TestAgentServerView,
        f"{AGENT}/members": agents.AgentMemberListView,
        f"{AGENT}/members/<str:user_id>": agents.AgentMemberDetailView,
        f"{AGENT}/tools": agent_tools.AgentToolListView,
        f"{TOOL}/explain": agent_tools.ExplainToolView,
        f"{TOOL}/call": agent_tools.CallToolView,
        f"{AGENT}/resources": agent_tools.AgentResourceListView,
        f"{AGENT}/resources/read": agent_tools.ReadResourceView,
        f"{AGENT}/prompts": agent_tools.AgentPromptListView,
        f"{AGENT}/prompts/get": agent_tools.GetPromptView,
        f"{AGENT}/tool-policy": policies.AgentPolicyView,
        f"{AGENT}/workspace": agents.AgentWorkspaceView,
        f"{AGENT}/budgets": budgets.AgentBudgetsView,
        f"{POLICY}/simulate": policy_simulations.SimulatePolicyView,
        f"{POLICY}/draft": policy_simulations.PolicyDraftView,
        f"{POLICY}/draft/shadow": policy_simulations.PolicyDraftSummaryView,
        f"{POLICY}/draft/enforce": policy_simulations.EnforceDraftView,
        f"{AGENT}/store-labels": flow_labels.AgentStoreLabelsView,
        f"{AGENT}/flow-labels": flow_labels.AgentFlowLabelsView,
        f"{AGENT}/sessions": sessions.AgentSessionListView,
        f"{AGENT}/sessions/import": sessions.ImportSessionView,
        "sessions": sessions.SessionListView,
        SESSION: sessions.SessionDetailView,
        f"{SESSION}/messages": sessions.SendMessageView,
        f"{SESSION}/retry": sessions.ResendMessageView,
        f"{SESSION}/export": sessions.SessionExportView,
        f"{SESSION}/files/<str:sha256>": sessions.SessionFileView,
        f"{SESSION}/images/<str:sha256>": sessions.SessionImageView,
        f"{SESSION}/events": sessions.SessionEventsView,
        f"{SESSION}/cancel": sessions.CancelSessionView,
        f"{SESSION}/release": sessions.ReleaseSessionView,
        SESSION_APPROVALS: approvals.SessionApprovalListView,
        f"{SESSION_APPROVALS}/<str:session_approval_id>": approvals.SessionApprovalDetailView,
        "elicitation-requests": elicitations.ElicitationRequestListView,
        ELICITATION: elicitations.ElicitationRequestDetailView,
        f"{ELICITATION}/answer": elicitations.AnswerElicitationView,
        "access-requests": access_requests.AccessRequestListView,
        ACCESS_REQUEST: access_requests.AccessRequestDetailView,
        f"{ACCESS_REQUEST}/answer": access_requests.AnswerAccessRequestView,
        f"{ACCESS_REQUEST}/cancel": access_requests.CancelAccessRequestView,
        "approvals": approvals.ApprovalListView,
        APPROVAL: approvals.ApprovalDetailView,
        f"{APPROVAL}/answer": approvals.AnswerApprovalView,
        "mcp-servers/import": server_imports.ImportServersView,
        "budgets": budgets.OrganizationBudgetsView,
        "mcp-servers/<str:server_id>/budgets": budgets.ServerBudgetsView,
        "mcp-servers/<str:server_id>/execute": server_calls.ExecuteServerRequestView,
        "model-endpoints": model_endpoints.ModelEndpointListView,
        ENDPOINT: model_endpoints.ModelEndpointDetailView,
        f"{ENDPOINT}/test": model_endpoints.TestModelEndpointView,
        "invitations": invitations.InvitationListView,
        "invitations/<str:invitation_id>": invitations.InvitationDetailView,
        "invitations/<str:invitation_id>/send": invitations.ResendInvitationView,
        "tokens": tokens.TokenListView,
        "tokens/<str:token_id>": tokens.TokenDetailView,
        "tokens/<str:token_id>/flow-labels": flow_labels.TokenFlowLabelsView,
        "authorized-clients": tokens.AuthorizedAppListView,
        "authorized-clients/<str:token_id>": tokens.AuthorizedAppDetailView,
        "external-issuers": external_issuers.IssuerListView,
        ISSUER: external_issuers.IssuerDetailView,
        f"{ISSUER}/check": external_issuers.CheckIssuerView,
    }
)
