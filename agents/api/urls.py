"""URLs of the REST resources of agents, below /api/."""

from django.urls import path

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

urlpatterns = [
    path("workflows", workflows.WorkflowListView.as_view(), name="workflows"),
    path(WORKFLOW, workflows.WorkflowDetailView.as_view(), name="workflow"),
    path(
        f"{WORKFLOW}/versions",
        workflows.WorkflowVersionListView.as_view(),
        name="workflow-versions",
    ),
    path(f"{WORKFLOW}/approve", workflows.ApproveWorkflowView.as_view(), name="workflow-approve"),
    path(f"{WORKFLOW}/runs", workflows.WorkflowRunListView.as_view(), name="workflow-runs"),
    path(f"{WORKFLOW}/triggers", triggers.TriggerListView.as_view(), name="workflow-triggers"),
    path(TRIGGER, triggers.TriggerDetailView.as_view(), name="workflow-trigger"),
    path(
        f"{TRIGGER}/secret",
        triggers.RotateTriggerSecretView.as_view(),
        name="workflow-trigger-secret",
    ),
    path("hooks/<str:hook_id>", triggers.WebhookView.as_view(), name="hook"),
    path(RUN, workflows.WorkflowRunDetailView.as_view(), name="workflow-run"),
    path(f"{RUN}/cancel", workflows.CancelWorkflowRunView.as_view(), name="workflow-run-cancel"),
    path("recordings", recordings.RecordingListView.as_view(), name="recordings"),
    path(RECORDING, recordings.RecordingDetailView.as_view(), name="recording"),
    path(REPLAYS, recordings.RecordingReplayListView.as_view(), name="recording-replays"),
    path(
        f"{REPLAYS}/<str:replay_id>",
        recordings.RecordingReplayDetailView.as_view(),
        name="recording-replay",
    ),
    path(
        f"{AGENT}/callable-agents",
        agents.CallableAgentsView.as_view(),
        name="agent-callable-agents",
    ),
    path("skills", skills.SkillListView.as_view(), name="skills"),
    path(SKILL, skills.SkillDetailView.as_view(), name="skill"),
    path(f"{SKILL}/versions", skills.SkillVersionListView.as_view(), name="skill-versions"),
    path(f"{SKILL}/render", skills.RenderSkillView.as_view(), name="skill-render"),
    path(f"{SKILL}/run", skills.RunSkillView.as_view(), name="skill-run"),
    path(f"{AGENT}/notes", notes.AgentNoteListView.as_view(), name="agent-notes"),
    path(f"{AGENT}/notes/<str:note_id>", notes.AgentNoteDetailView.as_view(), name="agent-note"),
    path("organization", organization.OrganizationDetailView.as_view(), name="organization"),
    path(
        "organization/halt", organization.HaltOrganizationView.as_view(), name="organization-halt"
    ),
    path(
        "organization/resume",
        organization.ResumeOrganizationView.as_view(),
        name="organization-resume",
    ),
    path(ORGANIZATION_POLICY, policies.OrganizationPolicyView.as_view(), name="own-tool-policy"),
    path(
        f"{ORGANIZATION_POLICY}/simulate",
        policy_simulations.SimulateOrganizationPolicyView.as_view(),
        name="own-policy-simulate",
    ),
    path(
        f"{ORGANIZATION_POLICY}/draft",
        policy_simulations.OrganizationDraftView.as_view(),
        name="own-policy-draft",
    ),
    path(
        f"{ORGANIZATION_POLICY}/draft/shadow",
        policy_simulations.OrganizationDraftSummaryView.as_view(),
        name="own-policy-shadow",
    ),
    path(
        f"{ORGANIZATION_POLICY}/draft/enforce",
        policy_simulations.EnforceOrganizationDraftView.as_view(),
        name="own-policy-enforce",
    ),
    path("agents", agents.AgentListView.as_view(), name="agents"),
    path(AGENT, agents.AgentDetailView.as_view(), name="agent"),
    path(f"{AGENT}/mcp-servers", agent_servers.AgentServerListView.as_view(), name="agent-servers"),
    path(SERVER, agent_servers.AgentServerDetailView.as_view(), name="agent-server"),
    path(f"{SERVER}/test", agent_servers.TestAgentServerView.as_view(), name="agent-server-test"),
    path(f"{AGENT}/members", agents.AgentMemberListView.as_view(), name="agent-members"),
    path(
        f"{AGENT}/members/<str:user_id>",
        agents.AgentMemberDetailView.as_view(),
        name="agent-member",
    ),
    path(f"{AGENT}/tools", agent_tools.AgentToolListView.as_view(), name="agent-tools"),
    path(f"{TOOL}/explain", agent_tools.ExplainToolView.as_view(), name="tool-explain"),
    path(f"{TOOL}/call", agent_tools.CallToolView.as_view(), name="tool-call"),
    path(f"{AGENT}/resources", agent_tools.AgentResourceListView.as_view(), name="agent-resources"),
    path(f"{AGENT}/resources/read", agent_tools.ReadResourceView.as_view(), name="resource-read"),
    path(f"{AGENT}/prompts", agent_tools.AgentPromptListView.as_view(), name="agent-prompts"),
    path(f"{AGENT}/prompts/get", agent_tools.GetPromptView.as_view(), name="prompt-get"),
    path(f"{AGENT}/tool-policy", policies.AgentPolicyView.as_view(), name="tool-policy"),
    path(f"{AGENT}/workspace", agents.AgentWorkspaceView.as_view(), name="agent-workspace"),
    path(f"{AGENT}/budgets", budgets.AgentBudgetsView.as_view(), name="budgets"),
    path(
        f"{POLICY}/simulate",
        policy_simulations.SimulatePolicyView.as_view(),
        name="policy-simulate",
    ),
    path(f"{POLICY}/draft", policy_simulations.PolicyDraftView.as_view(), name="policy-draft"),
    path(
        f"{POLICY}/draft/shadow",
        policy_simulations.PolicyDraftSummaryView.as_view(),
        name="policy-shadow",
    ),
    path(
        f"{POLICY}/draft/enforce",
        policy_simulations.EnforceDraftView.as_view(),
        name="policy-enforce",
    ),
    path(
        f"{AGENT}/store-labels",
        flow_labels.AgentStoreLabelsView.as_view(),
        name="agent-store-labels",
    ),
    path(
        f"{AGENT}/flow-labels", flow_labels.AgentHeldLabelsView.as_view(), name="agent-flow-labels"
    ),
    path(f"{AGENT}/sessions", sessions.AgentSessionListView.as_view(), name="agent-sessions"),
    path(
        f"{AGENT}/sessions/import",
        sessions.ImportSessionView.as_view(),
        name="session-import",
    ),
    path("sessions", sessions.SessionListView.as_view(), name="sessions"),
    path(SESSION, sessions.SessionDetailView.as_view(), name="session"),
    path(f"{SESSION}/messages", sessions.SendMessageView.as_view(), name="messages"),
    path(f"{SESSION}/retry", sessions.ResendMessageView.as_view(), name="session-retry"),
    path(f"{SESSION}/export", sessions.SessionExportView.as_view(), name="session-export"),
    path(f"{SESSION}/files/<str:sha256>", sessions.SessionFileView.as_view(), name="session-file"),
    path(
        f"{SESSION}/images/<str:sha256>", sessions.SessionImageView.as_view(), name="session-image"
    ),
    path(f"{SESSION}/events", sessions.SessionEventsView.as_view(), name="session-events"),
    path(f"{SESSION}/cancel", sessions.CancelSessionView.as_view(), name="session-cancel"),
    path(f"{SESSION}/release", sessions.ReleaseSessionView.as_view(), name="session-release"),
    path(SESSION_APPROVALS, approvals.SessionApprovalListView.as_view(), name="session-approvals"),
    path(
        f"{SESSION_APPROVALS}/<str:session_approval_id>",
        approvals.SessionApprovalDetailView.as_view(),
        name="session-approval",
    ),
    path(
        "elicitation-requests",
        elicitations.ElicitationRequestListView.as_view(),
        name="elicitation-requests",
    ),
    path(
        ELICITATION, elicitations.ElicitationRequestDetailView.as_view(), name="elicitation-request"
    ),
    path(
        f"{ELICITATION}/answer",
        elicitations.AnswerElicitationView.as_view(),
        name="elicitation-request-answer",
    ),
    path(
        "access-requests",
        access_requests.AccessRequestListView.as_view(),
        name="access-requests",
    ),
    path(ACCESS_REQUEST, access_requests.AccessRequestDetailView.as_view(), name="access-request"),
    path(
        f"{ACCESS_REQUEST}/answer",
        access_requests.AnswerAccessRequestView.as_view(),
        name="access-request-answer",
    ),
    path("approvals", approvals.ApprovalListView.as_view(), name="approvals"),
    path(APPROVAL, approvals.ApprovalDetailView.as_view(), name="approval"),
    path(f"{APPROVAL}/answer", approvals.AnswerApprovalView.as_view(), name="approval-answer"),
    path("mcp-servers/import", server_imports.ImportServersView.as_view(), name="import"),
    path("budgets", budgets.OrganizationBudgetsView.as_view(), name="organization-budgets"),
    path(
        "mcp-servers/<str:server_id>/budgets",
        budgets.ServerBudgetsView.as_view(),
        name="server-budgets",
    ),
    path(
        "mcp-servers/<str:server_id>/execute",
        server_calls.ExecuteServerRequestView.as_view(),
        name="execute",
    ),
    path(
        "model-endpoints", model_endpoints.ModelEndpointListView.as_view(), name="model-endpoints"
    ),
    path(ENDPOINT, model_endpoints.ModelEndpointDetailView.as_view(), name="model-endpoint"),
    path(
        f"{ENDPOINT}/test",
        model_endpoints.TestModelEndpointView.as_view(),
        name="model-endpoint-test",
    ),
    path("invitations", invitations.InvitationListView.as_view(), name="invitations"),
    path(
        "invitations/<str:invitation_id>",
        invitations.InvitationDetailView.as_view(),
        name="invitation",
    ),
    path(
        "invitations/<str:invitation_id>/send",
        invitations.ResendInvitationView.as_view(),
        name="invitation-send",
    ),
    path("tokens", tokens.TokenListView.as_view(), name="tokens"),
    path("tokens/<str:token_id>", tokens.TokenDetailView.as_view(), name="token"),
    path(
        "tokens/<str:token_id>/flow-labels",
        flow_labels.TokenHeldLabelsView.as_view(),
        name="token-flow-labels",
    ),
    path("authorized-clients", tokens.AuthorizedAppListView.as_view(), name="authorized-clients"),
    path(
        "authorized-clients/<str:token_id>",
        tokens.AuthorizedAppDetailView.as_view(),
        name="authorized-client",
    ),
    path("external-issuers", external_issuers.IssuerListView.as_view(), name="external-issuers"),
    path(ISSUER, external_issuers.IssuerDetailView.as_view(), name="external-issuer"),
    path(
        f"{ISSUER}/check", external_issuers.CheckIssuerView.as_view(), name="external-issuer-check"
    ),
]
