"""The outbox of notifications in the admin."""

from typing import Any

from django.contrib import messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from bonobot.accounts.admin_base import ObjectRequest, TabbedAdmin
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import ago
from bonobot.core.admin.theme import MultipleChoicesDropdownFilter, action, display, register
from bonobot.core.i18n.localization import localize_text
from bonobot.core.problems import Problem
from bonobot.notifications import delivery
from bonobot.notifications.admin.channels import EVENT_TITLES, render_state_badge
from bonobot.notifications.models import Notification


@register(Notification)
class NotificationAdmin(TabbedAdmin):
    """The active organization's notifications of the last 30 days."""

    needs_to_view = (Action.VIEW_AUDIT,)
    needs_to_change = Action.MANAGE_NOTICES
    list_display = (
        "event_title",
        "subject_label",
        "channel_name",
        "state_badge",
        "attempts",
        "last_error",
        "created",
    )
    list_filter = (("state", MultipleChoicesDropdownFilter), "severity", "channel")
    search_fields = ("subject_name", "text", "error")
    list_select_related = ("channel",)
    actions = ("retry_chosen",)
    change_list_template = "admin/notifications/list.html"

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: events create notifications."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False: old notifications are pruned automatically."""
        return False

    @display(description=_("event"), ordering="event")
    def event_title(self, notification: Notification) -> str:
        """Return the event's title."""
        return str(EVENT_TITLES[notification.event])

    @display(description=_("affected object"), ordering="subject_name")
    def subject_label(self, notification: Notification) -> str:
        return notification.about

    @display(description=_("channel"), ordering="channel__name")
    def channel_name(self, notification: Notification) -> str:
        return notification.channel.name

    @display(description=_("status"), ordering="state")
    def state_badge(self, notification: Notification) -> Any:
        """Return the state as a badge."""
        return render_state_badge(notification.state)

    @display(description=_("error"))
    def last_error(self, notification: Notification) -> str:
        """Return the error of the last attempt."""
        return localize_text(notification.error)[:80] or "–"

    @display(description=_("time"), ordering="created_at")
    def created(self, notification: Notification) -> Any:
        return ago(notification.created_at)

    @action(description=_("Resend"), permissions=["change"])
    def retry_chosen(self, request: HttpRequest, queryset: QuerySet[Notification]) -> None:
        """Retry the selected notifications immediately; skip those that were sent."""
        retried = 0
        for notification in queryset:
            try:
                delivery.retry_notification(self.get_principal(request), notification)
            except Problem as problem:
                if problem.code != "nothing_to_retry":
                    raise
            else:
                retried += 1
        text = ngettext(
            "%(n)d notification will be resent.", "%(n)d notifications will be resent.", retried
        )
        messages.success(request, text % {"n": retried})


@NotificationAdmin.add_page("change", _("Notification"), required_actions=Action.VIEW_AUDIT)
def show_notification(visit: ObjectRequest) -> HttpResponseBase:
    """Show a notification with its channel and state."""
    notification: Notification = visit.object
    return visit.render_tab(
        "notifications/notification.html",
        notification=notification,
        heading=EVENT_TITLES[notification.event],
        severity=notification.get_severity_display(),
        state=render_state_badge(notification.state),
        can_resend=notification.state in (Notification.State.WAITING, Notification.State.FAILED),
    )


@NotificationAdmin.add_object_action("retry", required_actions=Action.MANAGE_NOTICES)
def retry_notification(visit: ObjectRequest) -> None:
    delivery.retry_notification(visit.principal, visit.object)
    messages.success(visit.request, _t("The notification will be resent within seconds."))
