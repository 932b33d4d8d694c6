"""App configuration of Django's admin; its pages are loaded with the URLs."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.contrib import admin
from django.contrib.admin import apps as admin_apps
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core.checks import CheckMessage, Tags, register


class AdminConfig(admin_apps.SimpleAdminConfig):
    """Django's admin with our default site; its pages are loaded with the URLs."""

    default_site = "agents.admin.site.BonobotAdminSite"

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
    # Not loaded by `autodiscover`: the site itself is in `agents.admin`.
    from agents.admin import pages as agent_pages  # noqa: F401 - importing registers
    from bonobot.jobs import admin as job_admin  # noqa: F401 - importing registers
