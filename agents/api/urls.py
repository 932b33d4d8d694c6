"""Where the resources of agents are, below /api/."""

from django.urls import path

from agents.api import (
    agents,
    approvals,
    budgets,
    callees,
    connectors,
    conversing,
    endpoints,
    following,
    holding,
    hooks,
    imports,
    issuers,
    members,
    notes,
    offers,
    organization,
    policies,
    questions,
    recordings,
    replaying,
    servers,
    sessions,
    skills,
    tokens,
    tools,
    triggers,
    workflows,
    workspaces,
)

SKILL = "skills/<str:skill_id>"
WORKFLOW = "workflows/<str:workflow_id>"
TRIGGER = f"{WORKFLOW}/triggers/<str:trigger_id>"
RUN = "workflow-runs/<str:run_id>"
RECORDING = "recordings/<str:recording_id>"
REPLAYS = f"{RECORDING}/replays"
AGENT = "agents/<str:agent_id>"
SERVER = f"{AGENT}/mcp-servers/<str:server_id>"
OWN = "tool-policy"
POLICY = f"{AGENT}/tool-policy"
TOOL = f"{AGENT}/tools/<str:name>"
SESSION = "sessions/<str:session_id>"
APPROVAL = "approvals/<str:approval_id>"
QUESTION = "questions/<str:question_id>"
GRANTS = f"{SESSION}/grants"
ISSUER = "token-issuers/<str:issuer_id>"
ENDPOINT = "model-endpoints/<str:endpoint_id>"

urlpatterns = [
    path("workflows", workflows.Workflows.as_view(), name="workflows"),
    path(WORKFLOW, workflows.OneWorkflow.as_view(), name="workflow"),
    path(f"{WORKFLOW}/versions", workflows.WorkflowVersions.as_view(), name="workflow-versions"),
    path(f"{WORKFLOW}/approve", workflows.ApproveWorkflow.as_view(), name="workflow-approve"),
    path(f"{WORKFLOW}/runs", workflows.WorkflowRuns.as_view(), name="workflow-runs"),
    path(f"{WORKFLOW}/triggers", triggers.Triggers.as_view(), name="workflow-triggers"),
    path(TRIGGER, triggers.OneTrigger.as_view(), name="workflow-trigger"),
    path(f"{TRIGGER}/secret", triggers.TriggerSecret.as_view(), name="workflow-trigger-secret"),
    path("hooks/<str:hook_id>", hooks.Hook.as_view(), name="hook"),
    path(RUN, workflows.OneWorkflowRun.as_view(), name="workflow-run"),
    path(f"{RUN}/cancel", workflows.CancelWorkflowRun.as_view(), name="workflow-run-cancel"),
    path("recordings", recordings.Recordings.as_view(), name="recordings"),
    path(RECORDING, recordings.OneRecording.as_view(), name="recording"),
    path(REPLAYS, recordings.RecordingReplays.as_view(), name="recording-replays"),
    path(
        f"{REPLAYS}/<str:replay_id>",
        recordings.OneRecordingReplay.as_view(),
        name="recording-replay",
    ),
    path(f"{AGENT}/may-ask", callees.AgentCallees.as_view(), name="agent-callees"),
    path("skills", skills.Skills.as_view(), name="skills"),
    path(SKILL, skills.OneSkill.as_view(), name="skill"),
    path(f"{SKILL}/versions", skills.SkillVersions.as_view(), name="skill-versions"),
    path(f"{SKILL}/render", skills.RenderSkill.as_view(), name="skill-render"),
    path(f"{SKILL}/run", skills.RunSkill.as_view(), name="skill-run"),
    path(f"{AGENT}/notes", notes.AgentNotes.as_view(), name="agent-notes"),
    path(f"{AGENT}/notes/<str:note_id>", notes.OneNote.as_view(), name="agent-note"),
    path("organization", organization.OneOrganization.as_view(), name="organization"),
    path("organization/halt", organization.HaltOrganization.as_view(), name="organization-halt"),
    path(
        "organization/resume",
        organization.ResumeOrganization.as_view(),
        name="organization-resume",
    ),
    path(OWN, policies.OwnPolicy.as_view(), name="own-tool-policy"),
    path(f"{OWN}/replay", replaying.ReplayOwnPolicy.as_view(), name="own-policy-replay"),
    path(f"{OWN}/draft", replaying.OwnPolicyDraft.as_view(), name="own-policy-draft"),
    path(f"{OWN}/draft/shadow", replaying.OwnPolicyShadow.as_view(), name="own-policy-shadow"),
    path(f"{OWN}/draft/enforce", replaying.EnforceOwnDraft.as_view(), name="own-policy-enforce"),
    path("agents", agents.Agents.as_view(), name="agents"),
    path(AGENT, agents.OneAgent.as_view(), name="agent"),
    path(f"{AGENT}/mcp-servers", servers.AgentServers.as_view(), name="agent-servers"),
    path(SERVER, servers.AgentServer.as_view(), name="agent-server"),
    path(f"{SERVER}/test", servers.TestAgentServer.as_view(), name="agent-server-test"),
    path(f"{AGENT}/members", members.AgentMembers.as_view(), name="agent-members"),
    path(f"{AGENT}/members/<str:user_id>", members.AgentMember.as_view(), name="agent-member"),
    path(f"{AGENT}/tools", tools.AgentTools.as_view(), name="agent-tools"),
    path(f"{TOOL}/explain", tools.ExplainTool.as_view(), name="tool-explain"),
    path(f"{TOOL}/call", tools.CallTool.as_view(), name="tool-call"),
    path(f"{AGENT}/resources", offers.AgentResources.as_view(), name="agent-resources"),
    path(f"{AGENT}/resources/read", offers.ReadResource.as_view(), name="resource-read"),
    path(f"{AGENT}/prompts", offers.AgentPrompts.as_view(), name="agent-prompts"),
    path(f"{AGENT}/prompts/get", offers.GetPrompt.as_view(), name="prompt-get"),
    path(f"{AGENT}/tool-policy", policies.AgentPolicy.as_view(), name="tool-policy"),
    path(f"{AGENT}/workspace", workspaces.AgentWorkspace.as_view(), name="agent-workspace"),
    path(f"{AGENT}/budgets", budgets.AgentBudgets.as_view(), name="budgets"),
    path(f"{POLICY}/replay", replaying.ReplayPolicy.as_view(), name="policy-replay"),
    path(f"{POLICY}/draft", replaying.PolicyDraft.as_view(), name="policy-draft"),
    path(f"{POLICY}/draft/shadow", replaying.PolicyShadow.as_view(), name="policy-shadow"),
    path(f"{POLICY}/draft/enforce", replaying.EnforceDraft.as_view(), name="policy-enforce"),
    path(f"{AGENT}/held", holding.AgentHeld.as_view(), name="agent-held"),
    path(f"{AGENT}/sessions", sessions.AgentSessions.as_view(), name="agent-sessions"),
    path("sessions", sessions.Sessions.as_view(), name="sessions"),
    path(SESSION, sessions.OneSession.as_view(), name="session"),
    path(f"{SESSION}/messages", conversing.Messages.as_view(), name="messages"),
    path(f"{SESSION}/retry", conversing.SendAgain.as_view(), name="session-retry"),
    path(f"{SESSION}/export", conversing.SessionExport.as_view(), name="session-export"),
    path(f"{SESSION}/files/<str:sha256>", conversing.SessionFile.as_view(), name="session-file"),
    path(f"{SESSION}/images/<str:sha256>", sessions.SessionImage.as_view(), name="session-image"),
    path(f"{SESSION}/events", following.SessionEvents.as_view(), name="session-events"),
    path(f"{SESSION}/cancel", sessions.CancelSession.as_view(), name="session-cancel"),
    path(GRANTS, approvals.SessionGrants.as_view(), name="session-grants"),
    path(f"{GRANTS}/<str:grant_id>", approvals.OneSessionGrant.as_view(), name="session-grant"),
    path("questions", questions.Questions.as_view(), name="questions"),
    path(QUESTION, questions.OneQuestion.as_view(), name="question"),
    path(f"{QUESTION}/answer", questions.AnswerQuestion.as_view(), name="question-answer"),
    path("approvals", approvals.Approvals.as_view(), name="approvals"),
    path(APPROVAL, approvals.OneApproval.as_view(), name="approval"),
    path(f"{APPROVAL}/answer", approvals.AnswerApproval.as_view(), name="approval-answer"),
    path("mcp-servers/import", imports.Import.as_view(), name="import"),
    path("budgets", budgets.OrganizationBudgets.as_view(), name="organization-budgets"),
    path(
        "mcp-servers/<str:server_id>/budgets",
        budgets.ServerBudgets.as_view(),
        name="server-budgets",
    ),
    path("mcp-servers/<str:server_id>/execute", connectors.Execute.as_view(), name="execute"),
    path("model-endpoints", endpoints.ModelEndpoints.as_view(), name="model-endpoints"),
    path(ENDPOINT, endpoints.OneModelEndpoint.as_view(), name="model-endpoint"),
    path(f"{ENDPOINT}/test", endpoints.TestModelEndpoint.as_view(), name="model-endpoint-test"),
    path("tokens", tokens.Tokens.as_view(), name="tokens"),
    path("tokens/<str:token_id>", tokens.OneToken.as_view(), name="token"),
    path("tokens/<str:token_id>/held", holding.TokenHeld.as_view(), name="token-held"),
    path("token-issuers", issuers.Issuers.as_view(), name="token-issuers"),
    path(ISSUER, issuers.OneIssuer.as_view(), name="token-issuer"),
    path(f"{ISSUER}/check", issuers.CheckIssuer.as_view(), name="token-issuer-check"),
]
