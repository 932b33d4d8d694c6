"""Django's entry for agents."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class AgentsConfig(AppConfig):
    """Who may do what, and what happened."""

    name = "agents"
    verbose_name = _("Work")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register what lower layers call: agents of new members, tools that start sessions."""
        from agents.builtin_tools.asking import build_ask_tool
        from agents.builtin_tools.workflows import workflow_tool
        from agents.governance.own_tools import register_tool_source
        from agents.welcoming import give_agents
        from bonobot.tenancy.invitations import register_joined_hook

        register_joined_hook(give_agents)
        register_tool_source("agent", build_ask_tool)
        register_tool_source("workflow", workflow_tool)
