"""Django app configuration of the server registry."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class McpServersConfig(AppConfig):
    """The registry of MCP servers."""

    name = "mcp_servers"
    verbose_name = _("Connect")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register gauges, signal handlers and the hooks of the client package."""
        from bonobot.core.extension_points import LazyFunction
        from bonobot.monitoring.row_gauges import register_row_gauges
        from mcp_servers import installed_packages, refresh_definitions, stderr_log
        from mcp_servers.client import change_notifications
        from mcp_servers.client.child_process import set_stderr_sink
        from mcp_servers.client.package_installation import late_installation_listeners
        from mcp_servers.client.pool import set_stopped_servers_check
        from mcp_servers.close_connections import list_stopped_servers
        from mcp_servers.presets.services import load_after_migrate  # needs the models
        from mcp_servers.subscriptions import resource_updated

        register_row_gauges(LazyFunction("mcp_servers.row_gauges.build_row_gauges"))
        post_migrate.connect(load_after_migrate, sender=self)
        set_stderr_sink(stderr_log.save_stderr)
        change_notifications.add_change_notification_listeners(
            refresh_definitions.handle_change_notification,
            resource_updated.handle_change_notification,
        )
        set_stopped_servers_check(list_stopped_servers)
        if installed_packages.discover_after_installation not in late_installation_listeners:
            late_installation_listeners.append(installed_packages.discover_after_installation)
