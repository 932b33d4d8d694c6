"""URLs of servers and presets, below /api/."""

from django.urls import path

from mcp_servers.api import definitions, health, openapi, presets, servers

SERVER = "mcp-servers/<str:server_id>"
DEFINITION = f"{SERVER}/definitions/<str:definition_id>"

urlpatterns = [
    path("presets", presets.PresetListView.as_view(), name="presets"),
    path("presets/<str:preset_id>", presets.PresetDetailView.as_view(), name="preset"),
    path(
        "presets/<str:preset_id>/enable", presets.EnablePresetView.as_view(), name="preset-enable"
    ),
    path(
        "presets/<str:preset_id>/disable",
        presets.DisablePresetView.as_view(),
        name="preset-disable",
    ),
    path("mcp-servers/export", servers.ServerExportView.as_view(), name="export"),
    path("mcp-servers/openapi/preview", openapi.ApiPreviewView.as_view(), name="openapi-preview"),
    path(
        "mcp-servers/operations/preview",
        openapi.OperationPreviewView.as_view(),
        name="operation-preview",
    ),
    path("mcp-servers", servers.ServerListView.as_view(), name="servers"),
    path(SERVER, servers.ServerDetailView.as_view(), name="server"),
    path(f"{SERVER}/test", servers.TestServerView.as_view(), name="server-test"),
    path(f"{SERVER}/refresh", servers.RefreshServerView.as_view(), name="server-refresh"),
    path(f"{SERVER}/sign-in", servers.ServerSignInView.as_view(), name="server-sign-in"),
    path(f"{SERVER}/history", health.HealthCheckListView.as_view(), name="server-history"),
    path(f"{SERVER}/uptime", health.ServerUptimeView.as_view(), name="server-uptime"),
    path(f"{SERVER}/enable", servers.EnableServerView.as_view(), name="server-enable"),
    path(f"{SERVER}/disable", servers.DisableServerView.as_view(), name="server-disable"),
    path(f"{SERVER}/operations", openapi.OperationListView.as_view(), name="operations"),
    path(
        f"{SERVER}/operations/<str:name>", openapi.OperationDetailView.as_view(), name="operation"
    ),
    path(f"{SERVER}/definitions", definitions.DefinitionListView.as_view(), name="definitions"),
    path(f"{SERVER}/tools", definitions.ServerToolListView.as_view(), name="server-tools"),
    path(
        f"{SERVER}/resources", definitions.ServerResourceListView.as_view(), name="server-resources"
    ),
    path(f"{SERVER}/prompts", definitions.ServerPromptListView.as_view(), name="server-prompts"),
    path(f"{SERVER}/labels", definitions.DefinitionLabelsView.as_view(), name="labels"),
    path(
        f"{SERVER}/store-labels",
        servers.ServerStoreLabelsView.as_view(),
        name="server-store-labels",
    ),
    path(f"{SERVER}/approve", definitions.ApproveDefinitionsView.as_view(), name="approve"),
    path(DEFINITION, definitions.DefinitionDetailView.as_view(), name="definition"),
    path(
        f"{DEFINITION}/approve",
        definitions.ApproveDefinitionView.as_view(),
        name="definition-approve",
    ),
    path(
        f"{DEFINITION}/reject", definitions.RejectDefinitionView.as_view(), name="definition-reject"
    ),
]
