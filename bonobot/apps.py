"""The project's own application: its commands and its system checks."""

from django.apps import AppConfig


class BonobotConfig(AppConfig):
    name = "bonobot"
    verbose_name = "Bonobot"

    def ready(self) -> None:
        """Register the system checks."""
        from bonobot import checks  # noqa: F401 - importing registers; needs the settings
