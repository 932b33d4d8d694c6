"""Django's entry for the registry of MCP servers."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class McpServersConfig(AppConfig):
    """What exists and how to reach it."""

    name = "mcp_servers"
    verbose_name = _("Connect")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Load the catalogue wherever `migrate` runs; keep stderr; hear servers; stop them."""
        from mcp_servers import following, outputs, packages, rereading
        from mcp_servers.connections import changes
        from mcp_servers.connections.installation import on_late_installation
        from mcp_servers.connections.last_words import keep_with
        from mcp_servers.connections.stopping import stop_by
        from mcp_servers.presets.loading import after_migrating  # needs the models
        from mcp_servers.stopping import stopped

        post_migrate.connect(after_migrating, sender=self)
        keep_with(outputs.keep)
        changes.tell(rereading.hear, following.hear)
        stop_by(stopped)
        if packages.discover_late not in on_late_installation:
            on_late_installation.append(packages.discover_late)
