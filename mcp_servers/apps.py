"""Django app configuration of the server registry."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _

# Rows that tell what was seen of a server, which its next checks write again.
OBSERVED_MODELS = frozenset(
    f"mcp_servers.{name}"
    for name in (
        "changesubscription",
        "erroroutput",
        "healthcheck",
        "outage",
        "resourcesubscription",
        "unmonitoredperiod",
    )
)


class McpServersConfig(AppConfig):
    """The registry of MCP servers."""

    name = "mcp_servers"
    verbose_name = _("Connect")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register gauges, signal handlers and the hooks of the client package."""
        from bonobot.accounts.deletions import RestorableKind, restorable_kinds
        from bonobot.accounts.roles import Action
        from bonobot.core.extension_points import LazyFunction
        from bonobot.monitoring.extension_points import row_gauges
        from mcp_servers.client import extension_points

        restorable_kinds.register(
            RestorableKind(
                name="mcp_server",
                label=_("Server"),
                model="mcp_servers.server",
                required_action=Action.MANAGE_SERVERS,
                action="server_restored",
                ignored_models=OBSERVED_MODELS,
                after_restore=LazyFunction("mcp_servers.services.check_restored_server"),
                finish=LazyFunction("mcp_servers.build_endpoint.delete_server_home"),
            )
        )
        restorable_kinds.register(
            RestorableKind(
                name="mcp_preset",
                label=_("Preset"),
                model="mcp_servers.preset",
                required_action=Action.MANAGE_SERVERS,
                action="preset_restored",
            )
        )
        row_gauges.register(LazyFunction("mcp_servers.server_gauges.build_row_gauges"))
        post_migrate.connect(
            LazyFunction("mcp_servers.presets.sync_catalog.load_after_migrate"),
            sender=self,
            weak=False,
        )
        extension_points.set_stderr_sink(LazyFunction("mcp_servers.stderr_log.save_stderr"))
        extension_points.set_change_notification_listeners(
            LazyFunction("mcp_servers.refresh_definitions.handle_change_notification"),
            LazyFunction("mcp_servers.subscriptions.resource_updated.handle_change_notification"),
        )
        extension_points.set_server_versions_loader(
            LazyFunction("mcp_servers.close_connections.load_server_versions")
        )
        extension_points.late_installation_listeners[:] = [
            LazyFunction("mcp_servers.reinstall_package.discover_after_installation")
        ]
