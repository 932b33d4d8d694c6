"""Where the registry's resources are, below /api/."""

from django.urls import path

from mcp_servers.api import (
    definitions,
    exports,
    history,
    openapi,
    operations,
    presets,
    servers,
    store_labels,
)

ONE = "mcp-servers/<str:server_id>"
DEFINITION = f"{ONE}/definitions/<str:definition_id>"

urlpatterns = [
    path("presets", presets.Presets.as_view(), name="presets"),
    path("presets/<str:preset_id>", presets.OnePreset.as_view(), name="preset"),
    path("presets/<str:preset_id>/enable", presets.EnablePreset.as_view(), name="preset-enable"),
    path("presets/<str:preset_id>/disable", presets.DisablePreset.as_view(), name="preset-disable"),
    path("mcp-servers/export", exports.Export.as_view(), name="export"),
    path("mcp-servers/openapi/preview", openapi.ApiPreview.as_view(), name="openapi-preview"),
    path(
        "mcp-servers/operations/preview",
        operations.OperationPreview.as_view(),
        name="operation-preview",
    ),
    path("mcp-servers", servers.Servers.as_view(), name="servers"),
    path(ONE, servers.OneServer.as_view(), name="server"),
    path(f"{ONE}/test", servers.TestServer.as_view(), name="server-test"),
    path(f"{ONE}/refresh", servers.RefreshServer.as_view(), name="server-refresh"),
    path(f"{ONE}/sign-in", servers.SignIn.as_view(), name="server-sign-in"),
    path(f"{ONE}/history", history.ServerHistory.as_view(), name="server-history"),
    path(f"{ONE}/uptime", history.ServerUptime.as_view(), name="server-uptime"),
    path(f"{ONE}/enable", servers.EnableServer.as_view(), name="server-enable"),
    path(f"{ONE}/disable", servers.DisableServer.as_view(), name="server-disable"),
    path(f"{ONE}/operations", operations.Operations.as_view(), name="operations"),
    path(f"{ONE}/operations/<str:name>", operations.OneOperation.as_view(), name="operation"),
    path(f"{ONE}/definitions", definitions.Definitions.as_view(), name="definitions"),
    path(f"{ONE}/tools", definitions.Tools.as_view(), name="server-tools"),
    path(f"{ONE}/resources", definitions.Resources.as_view(), name="server-resources"),
    path(f"{ONE}/prompts", definitions.Prompts.as_view(), name="server-prompts"),
    path(f"{ONE}/labels", definitions.Labels.as_view(), name="labels"),
    path(
        f"{ONE}/store-labels",
        store_labels.ServerStoreLabels.as_view(),
        name="server-store-labels",
    ),
    path(f"{ONE}/approve", definitions.ApproveMany.as_view(), name="approve"),
    path(DEFINITION, definitions.OneDefinition.as_view(), name="definition"),
    path(f"{DEFINITION}/approve", definitions.ApproveOne.as_view(), name="definition-approve"),
]
