"""Admin of recently deleted objects, which can be restored."""

from functools import partial
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST

from bonobot.accounts.admin_base.responses import change_each, redirect_back
from bonobot.accounts.admin_base.scoped_admin import ScopedAdmin
from bonobot.accounts.deletions import (
    get_deletion,
    get_restorable_kind,
    list_deletions,
    restore_deletion,
)
from bonobot.accounts.models import Deletion
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import ago
from bonobot.core.admin.theme import action, display, register
from bonobot.core.i18n.localization import format_number

LIST = "tenancy_deletion_changelist"


@register(Deletion)
class DeletionAdmin(ScopedAdmin):
    """What the user can restore in the active organization."""

    needs_to_view = (Action.MANAGE_AGENTS, Action.MANAGE_SERVERS, Action.MANAGE_WORKFLOWS)
    list_display = ("name", "type_label", "deleted_by", "deleted", "expires", "restore_button")
    list_display_links = None
    actions = ("restore_chosen",)
    search_fields = ("name", "deleted_by")
    empty_icon = "restore_from_trash"
    empty_text = _(
        "Deleted agents, servers, presets, skills, and workflows can be restored for ten minutes."
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return what the user can restore now."""
        return list_deletions(self.get_principal(request)).defer("rows")

    def get_urls(self) -> list[URLPattern]:
        """Return the list, and the view that restores an object."""
        view = self.admin_site.admin_view(require_POST(self.restore_view))
        name = "tenancy_deletion_restore"
        list_urls = [url for url in super().get_urls() if url.name == LIST]
        return [path("<uuid:deletion_id>/restore/", view, name=name), *list_urls]

    def restore_view(self, request: HttpRequest, deletion_id: Any) -> HttpResponseRedirect:
        """Restore an object and show it."""
        principal = self.get_principal(request)
        deletion = get_deletion(principal, deletion_id)
        restore_deletion(principal, deletion)
        messages.success(request, _t("%(name)s was restored.") % {"name": deletion.name})
        return HttpResponseRedirect(_build_path(deletion))

    @action(description=_("Restore"))
    def restore_chosen(
        self, request: HttpRequest, queryset: QuerySet[Deletion]
    ) -> HttpResponseRedirect:
        """Restore the selected objects, the one that was deleted last first.

        *Undo* of a message about several deleted objects uses it from any page.
        """
        restore = partial(restore_deletion, self.get_principal(request))
        if count := change_each(request, queryset.order_by("-created_at"), restore):
            text = ngettext("%(n)s object restored.", "%(n)s objects restored.", count)
            messages.success(request, text % {"n": format_number(count)})
        return redirect_back(request, reverse(f"admin:{LIST}"))

    def list_audit_ids(self, row: Deletion) -> tuple[str, ...]:
        """Return the ID of the deleted object, which entries about it have."""
        return (row.object_id,)

    @display(description=_("type"), ordering="kind")
    def type_label(self, deletion: Deletion) -> str:
        return str(get_restorable_kind(deletion.kind).label)

    @display(description=_("deleted"), ordering="created_at")
    def deleted(self, deletion: Deletion) -> Any:
        return ago(deletion.created_at)

    @display(description=_("expires"), ordering="expires_at")
    def expires(self, deletion: Deletion) -> Any:
        """Return until when it can be restored."""
        return ago(deletion.expires_at)

    @display(description=_("action"))
    def restore_button(self, deletion: Deletion) -> SafeString:
        return format_html(
            '<button class="bb-button bb-slim" type="submit" formaction="{}">{}</button>',
            reverse("admin:tenancy_deletion_restore", args=[deletion.pk]),
            _t("Restore"),
        )


def _build_path(deletion: Deletion) -> str:
    """Return the path of the page that shows a restored object."""
    kind = get_restorable_kind(deletion.kind)
    if kind.build_path is not None:
        return kind.build_path(deletion.object_id)
    model = kind.model.replace(".", "_")
    return reverse(f"admin:{model}_change", args=[deletion.object_id])
