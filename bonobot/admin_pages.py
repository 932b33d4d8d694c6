"""App configuration of Django's admin; its pages are loaded with the URLs."""

from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules
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

    Pages are in the modules `admin`, and in all modules of the packages `admin`. Loading them takes
    a second, so workers and most commands don't.
    """
    admin.autodiscover()
    from agents import admin as agents_admin
    from bonobot.accounts import admin as accounts_admin
    from bonobot.jobs import admin as jobs_admin  # noqa: F401 - importing registers
    from mcp_servers import admin as servers_admin

    for package in (accounts_admin, servers_admin, agents_admin):
        for module in iter_modules(package.__path__, f"{package.__name__}."):
            import_module(module.name)
