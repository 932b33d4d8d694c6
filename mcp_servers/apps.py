"""Django's entry for the registry of MCP servers."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class McpServersConfig(AppConfig):
    """What exists and how to reach it."""

    name = "mcp_servers"
    verbose_name = _("Connect")
    default_auto_field = "django.db.models.BigAutoField"
