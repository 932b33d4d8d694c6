"""URLs of servers and presets, below /api/."""

from bonobot.accounts.api.resource_view import build_url_patterns
from mcp_servers.api import definitions, health, openapi, presets, servers

SERVER = "mcp-servers/<str:server_id>"
DEFINITION = f"{SERVER}/definitions/<str:definition_id>"

urlpatterns = build_url_patterns(
    {
        "presets": presets.PresetListView,
        "presets/<str:preset_id>": presets.PresetDetailView,
        "presets/<str:preset_id>/enable": presets.EnablePresetView,
        "presets/<str:preset_id>/disable": presets.DisablePresetView,
        "mcp-servers/export": servers.ServerExportView,
        "mcp-servers/openapi/preview": openapi.ApiPreviewView,
        "mcp-servers/operations/preview": openapi.OperationPreviewView,
        "mcp-servers": servers.ServerListView,
        SERVER: servers.ServerDetailView,
        f"{SERVER}/test": servers.TestServerView,
        f"{SERVER}/refresh": servers.RefreshServerView,
        f"{SERVER}/sign-in": servers.ServerSignInView,
        f"{SERVER}/history": health.HealthCheckListView,
        f"{SERVER}/uptime": health.ServerUptimeView,
        f"{SERVER}/enable": servers.EnableServerView,
        f"{SERVER}/disable": servers.DisableServerView,
        f"{SERVER}/operations": openapi.OperationListView,
        f"{SERVER}/operations/<str:name>": openapi.OperationDetailView,
        f"{SERVER}/definitions": definitions.DefinitionListView,
        f"{SERVER}/tools": definitions.ServerToolListView,
        f"{SERVER}/resources": definitions.ServerResourceListView,
        f"{SERVER}/prompts": definitions.ServerPromptListView,
        f"{SERVER}/labels": definitions.DefinitionLabelsView,
        f"{SERVER}/store-labels": servers.ServerStoreLabelsView,
        f"{SERVER}/approve": definitions.ApproveDefinitionsView,
        DEFINITION: definitions.DefinitionDetailView,
        f"{DEFINITION}/approve": definitions.ApproveDefinitionView,
        f"{DEFINITION}/reject": definitions.RejectDefinitionView,
    }
)
