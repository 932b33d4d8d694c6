"""Django's entry for agents."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class AgentsConfig(AppConfig):
    """Who may do what, and what happened."""

    name = "agents"
    verbose_name = _("Work")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Let whoever joins an organization have the agents that they were promised."""
        from agents import welcoming  # noqa: F401  # models, which need the apps
