"""The project's own application: its commands and its system checks."""

from django.apps import AppConfig
from django.contrib.admin import apps as admin_apps


class AdminConfig(admin_apps.AdminConfig):
    """Django's admin, whose default site is ours."""

    default = False
    default_site = "bonobot.admin.Site"


class BonobotConfig(AppConfig):
    """The wiring."""

    default = True
    name = "bonobot"
    verbose_name = "Bonobot"

    def ready(self) -> None:
        """Register the system checks and the admin of schedules, once the site is there."""
        from django.conf import settings

        from bonobot import __version__, checks, schedule_screen  # noqa: F401 - importing registers
        from bonobot.gateway import admin  # noqa: F401 - it adds to others' pages
        from bonobot.lib import tracing

        if settings.BONOBOT_TRACES:
            tracing.begin(settings.BONOBOT_TRACES, __version__)
