"""App configurations of the project and of Django's admin."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.contrib import admin
from django.contrib.admin import apps as admin_apps
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core.checks import CheckMessage, Tags, register


class AdminConfig(admin_apps.SimpleAdminConfig):
    """Django's admin with our default site; its pages are loaded with the URLs."""

    default = False
    default_site = "agents.console.admin.site.BonobotAdminSite"

    def ready(self) -> None:
        """Register Django's admin checks, which load the pages only when they run."""
        register(check_dependencies, Tags.admin)
        register(check_admin_pages, Tags.admin)


def check_admin_pages(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Load the admin pages and run Django's admin checks."""
    load_admin_pages()
    return check_admin_app(app_configs)


def load_admin_pages() -> None:
    """Register the admin pages of all apps.

    Loading them takes a second, so workers and most commands don't.
    """
    admin.autodiscover()
    from agents.gateway import admin as programs  # noqa: F401
    from bonobot.jobs import admin as job_admin  # noqa: F401 - importing registers


class BonobotConfig(AppConfig):
    """The project's app: commands, checks, Celery and tracing."""

    default = True
    name = "bonobot"
    verbose_name = "Bonobot"

    def ready(self) -> None:
        """Register system checks and command groups; start tracing if configured.

        The Celery application is created here, so that `@shared_task` finds its broker in every
        Django process; child processes without Django don't load it.
        """
        from django.conf import settings

        from bonobot import __version__, celery, checks  # noqa: F401 - importing registers
        from bonobot.core.cli.command_environment import register_readiness_check
        from bonobot.core.extension_points import LazyFunction
        from bonobot.management.command_groups import register_command_groups

        register_command_groups()

        register_readiness_check(LazyFunction("bonobot.monitoring.health.find_readiness_problem"))

        if settings.BONOBOT_TRACES:
            from bonobot.core.telemetry import tracing

            tracing.start_tracing(settings.BONOBOT_TRACES, __version__)
