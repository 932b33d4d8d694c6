"""The admin of launchers: programs that may start stdio servers."""

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base import ScopedAdmin
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import register
from mcp_servers.launchers import create_launcher, delete_launcher
from mcp_servers.models import Launcher


@register(Launcher)
class LauncherAdmin(ScopedAdmin):
    """The launcher allowlist, in addition to `BONOBOT_LAUNCHERS`."""

    platform_only = True
    needs_to_view = (Action.MANAGE_LAUNCHERS,)
    needs_to_change = Action.MANAGE_LAUNCHERS
    delete_note = _("No new server can use it. Existing servers keep using it.")
    add_label = _("Add launcher")
    empty_icon = "terminal"
    empty_text = _(
        "Local servers can use the commands of BONOBOT_LAUNCHERS. Add others here, without a "
        "restart."
    )
    list_display = ("command", "note", "created")
    search_fields = ("command", "note")
    fieldsets = (
        (
            None,
            {
                "fields": ("command", "note"),
                "description": _(
                    "Any organization can start local servers with this command, such as npx or "
                    "/usr/local/bin/my-server. It runs on the hosts of Bonobot."
                ),
            },
        ),
    )

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Allow list actions only; launchers are added or deleted, never changed."""
        return obj is None and super().has_change_permission(request, obj)

    def save_model(self, request: HttpRequest, obj: Launcher, form: Any, change: bool) -> None:
        """Create the launcher through the service."""
        create_launcher(self.get_principal(request), obj)

    def delete_model(self, request: HttpRequest, obj: Launcher) -> None:
        """Delete the launcher through the service."""
        delete_launcher(self.get_principal(request), obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Launcher]) -> None:
        """Delete each launcher through the service."""
        for launcher in queryset:
            delete_launcher(self.get_principal(request), launcher)
