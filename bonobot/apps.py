"""The project's own application: its commands and its system checks."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.contrib import admin
from django.contrib.admin import apps as admin_apps
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core.checks import CheckMessage, Tags, register


class AdminConfig(admin_apps.SimpleAdminConfig):
    """Django's admin, whose default site is ours; its pages are loaded with the addresses."""

    default = False
    default_site = "agents.console.admin.site.BonobotAdminSite"

    def ready(self) -> None:
        """Register Django's checks of the admin, and load the pages only when they run."""
        register(check_dependencies, Tags.admin)
        register(check_pages, Tags.admin)


def check_pages(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Check all pages of the admin as Django does."""
    load_pages()
    return check_admin_app(app_configs)


def load_pages() -> None:
    """Register the pages of the admin: the apps' own, then what the wiring adds to them.

    They take a second, which workers and most commands need not wait for.
    """
    admin.autodiscover()
    from agents.gateway import admin as programs  # noqa: F401
    from bonobot.jobs import admin as job_admin  # noqa: F401 - importing registers


class BonobotConfig(AppConfig):
    """The wiring."""

    default = True
    name = "bonobot"
    verbose_name = "Bonobot"

    def ready(self) -> None:
        """Register the system checks and command groups; begin to trace, where that is wanted.

        The Celery application is created here, so that `@shared_task` finds its broker in every
        process of Django, and children that need neither don't load it.
        """
        from django.conf import settings

        from bonobot import __version__, celery, checks  # noqa: F401 - importing registers
        from bonobot.core.cli.command_environment import register_readiness_check
        from bonobot.core.extension_points import LazyFunction
        from bonobot.core.telemetry import tracing
        from bonobot.management.command_groups import register_command_groups

        register_command_groups()

        register_readiness_check(LazyFunction("bonobot.monitoring.health.find_readiness_problem"))

        if settings.BONOBOT_TRACES:
            tracing.begin(settings.BONOBOT_TRACES, __version__)
