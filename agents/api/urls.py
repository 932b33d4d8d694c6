"""Where the resources of agents are, below /api/."""

from django.urls import path

from agents.api import agents, connectors, endpoints, policies, servers, sessions, tokens, tools

AGENT = "agents/<str:agent_id>"
SERVER = f"{AGENT}/mcp-servers/<str:server_id>"
TOOL = f"{AGENT}/tools/<str:name>"
SESSION = "sessions/<str:session_id>"
ENDPOINT = "model-endpoints/<str:endpoint_id>"

urlpatterns = [
    path("agents", agents.Agents.as_view(), name="agents"),
    path(AGENT, agents.OneAgent.as_view(), name="agent"),
    path(f"{AGENT}/mcp-servers", servers.AgentServers.as_view(), name="agent-servers"),
    path(SERVER, servers.AgentServer.as_view(), name="agent-server"),
    path(f"{SERVER}/test", servers.TestAgentServer.as_view(), name="agent-server-test"),
    path(f"{AGENT}/tools", tools.AgentTools.as_view(), name="agent-tools"),
    path(f"{TOOL}/explain", tools.ExplainTool.as_view(), name="tool-explain"),
    path(f"{TOOL}/call", tools.CallTool.as_view(), name="tool-call"),
    path(f"{AGENT}/tool-policy", policies.AgentPolicy.as_view(), name="tool-policy"),
    path(f"{AGENT}/budgets", policies.AgentBudgets.as_view(), name="budgets"),
    path(f"{AGENT}/sessions", sessions.AgentSessions.as_view(), name="agent-sessions"),
    path("sessions", sessions.Sessions.as_view(), name="sessions"),
    path(SESSION, sessions.OneSession.as_view(), name="session"),
    path(f"{SESSION}/messages", sessions.Messages.as_view(), name="messages"),
    path(f"{SESSION}/events", sessions.SessionEvents.as_view(), name="session-events"),
    path(f"{SESSION}/cancel", sessions.CancelSession.as_view(), name="session-cancel"),
    path("mcp-servers/<str:server_id>/execute", connectors.Execute.as_view(), name="execute"),
    path("model-endpoints", endpoints.ModelEndpoints.as_view(), name="model-endpoints"),
    path(ENDPOINT, endpoints.OneModelEndpoint.as_view(), name="model-endpoint"),
    path("tokens", tokens.Tokens.as_view(), name="tokens"),
    path("tokens/<str:token_id>", tokens.OneToken.as_view(), name="token"),
]
