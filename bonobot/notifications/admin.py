"""Notification channels and the outbox of notifications in the admin."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from bonobot.accounts.admin_base import (
    ObjectRequest,
    TabbedAdmin,
    add_problem_to_form,
    render_screen,
)
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import ago, render_badge
from bonobot.core.admin.theme import (
    Checkbox,
    ChoicesCheckboxFilter,
    SecretInput,
    Select,
    Textarea,
    TextInput,
    action,
    display,
    register,
)
from bonobot.core.i18n.localization import localize_text
from bonobot.core.problems import Problem
from bonobot.core.text.masking import MASK
from bonobot.core.text.untrusted_text import make_visible
from bonobot.notifications import delivery
from bonobot.notifications.channels import NotificationChannelSpec, delete_channel, save_channel
from bonobot.notifications.delivery import send_test_notification
from bonobot.notifications.events import EVENTS, SELECTABLE_EVENTS
from bonobot.notifications.models import SEVERITIES, Notification, NotificationChannel

MAX_NOTIFICATIONS_SHOWN = 20
# The badge tones of states.
STATE_TONES = {"waiting": "running", "sent": "ok", "failed": "failed", "withdrawn": "withdrawn"}
EVENT_TITLES = {code: _(event.title) for code, event in EVENTS.items()}


@register(Notification)
class NotificationAdmin(TabbedAdmin):
    """The active organization's notifications of the last 30 days."""

    needs_to_view = (Action.VIEW_AUDIT,)
    needs_to_change = Action.MANAGE_NOTICES
    can_add = False  # events create notifications
    can_delete = False  # old notifications are pruned automatically
    list_display = (
        "event_title",
        "subject_label",
        "channel_name",
        "state_badge",
        "attempts",
        "last_error",
        "created",
    )
    list_filter = (("state", ChoicesCheckboxFilter), "severity", "channel")
    search_fields = ("subject_name", "text", "error")
    list_select_related = ("channel",)
    actions = ("retry_chosen",)
    change_list_template = "admin/notifications/list.html"

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


def _build_secret_field(label: Any, help_text: Any) -> forms.CharField:
    return forms.CharField(
        label=label,
        required=False,
        help_text=help_text,
        widget=SecretInput(),
    )


class NotificationChannelForm(forms.Form):
    """The form of a channel; the kind decides which fields are shown."""

    name = forms.CharField(
        label=_("Name"),
        widget=TextInput,
        help_text=_("Who receives the notifications, such as “Operations”."),
    )
    kind = forms.ChoiceField(
        label=_("Type"), choices=NotificationChannel.Kind.choices, widget=Select
    )
    addresses = forms.CharField(
        label=_("Addresses"),
        required=False,
        widget=Textarea(attrs={"rows": 3}),
        help_text=_("One per line."),
    )
    url = _build_secret_field(
        _("URL"),
        _("Receives signed JSON by POST. Stored encrypted, because the URL can contain a key."),
    )
    secret = _build_secret_field(
        _("Signing secret"),
        _(
            "Leave empty to generate a secret, which is shown once. Receivers use it to check "
            "signatures."
        ),
    )
    allow_private = forms.BooleanField(
        label=_("Allow private address"),
        required=False,
        widget=Checkbox,
        help_text=_("For receivers in your own network. Platform administrators only."),
    )
    events = forms.MultipleChoiceField(
        label=_("Events"),
        choices=[(code, EVENT_TITLES[code]) for code in SELECTABLE_EVENTS],
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("If none is selected, all events are sent, including future ones."),
    )
    minimum_severity = forms.ChoiceField(
        label=_("Minimum severity"), choices=SEVERITIES, initial="info", widget=Select
    )
    enabled = forms.BooleanField(label=_("Enabled"), required=False, initial=True, widget=Checkbox)

    def __init__(
        self,
        principal: Principal,
        posted: Any = None,
        *,
        channel: NotificationChannel | None = None,
    ) -> None:
        """Fill the form with a stored channel, secrets masked."""
        defaults = {
            "kind": NotificationChannel.Kind.EMAIL
            if settings.BONOBOT_EMAIL_URL
            else NotificationChannel.Kind.WEBHOOK
        }
        super().__init__(posted, initial=build_initial(channel) if channel else defaults)
        if not principal.may(Action.ALLOW_PRIVATE_ADDRESS):
            self.fields["allow_private"].disabled = True

    def build_spec(self) -> NotificationChannelSpec:
        values = dict(self.cleaned_data)
        values["addresses"] = values["addresses"].replace(",", " ").split()
        return NotificationChannelSpec(**values)

    @property
    def email_fields(self) -> list[forms.BoundField]:
        """The fields of email channels only."""
        return [self["addresses"]]

    @property
    def webhook_fields(self) -> list[forms.BoundField]:
        """The fields of webhooks only."""
        return [self["url"], self["secret"], self["allow_private"]]


def build_initial(channel: NotificationChannel) -> dict[str, Any]:
    plain_fields = ("name", "kind", "allow_private", "events", "minimum_severity", "enabled")
    return {
        **{name: getattr(channel, name) for name in plain_fields},
        "addresses": "\n".join(channel.addresses),
        "url": MASK if channel.url else "",
        "secret": MASK if channel.secret else "",
    }


@register(NotificationChannel)
class NotificationChannelAdmin(TabbedAdmin):
    """The notification channels of the active organization."""

    needs_to_view = (Action.VIEW_AUDIT,)
    needs_to_change = Action.MANAGE_NOTICES
    has_bulk_actions = False  # a channel is deleted on its own page
    delete_note = _("This channel no longer sends notifications.")
    list_display = (
        "name",
        "kind",
        "destination",
        "event_titles",
        "minimum_severity",
        "is_enabled",
        "last_notification",
    )
    list_filter = ("kind", "enabled")
    search_fields = ("name", "origin")
    change_list_template = "admin/notifications/channels.html"
    add_label = _("Create channel")

    def get_queryset(self, request: HttpRequest) -> QuerySet[NotificationChannel]:
        """Return the channels with the state of their last notification."""
        tried_notifications = Notification.objects.filter(channel=OuterRef("pk"), attempts__gt=0)
        latest = tried_notifications.order_by("-created_at").values("state")[:1]
        return super().get_queryset(request).annotate(latest_state=Subquery(latest))

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show our own form; a generated secret is shown once in the response."""
        principal = self.get_principal(request)
        principal.require(Action.MANAGE_NOTICES)
        form = NotificationChannelForm(principal, request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                channel, secret = save_channel(principal, form.build_spec())
            except Problem as problem:
                add_problem_to_form(form, problem)
            else:
                return self.show_created_secret(request, channel, secret)
        return render_screen(
            request,
            "notifications/add_channel.html",
            title=_("Create channel"),
            form=form,
            opts=self.opts,
        )

    def show_created_secret(
        self, request: HttpRequest, channel: NotificationChannel, secret: str
    ) -> HttpResponseBase:
        """Show a generated secret once, or redirect to the channel if there is none."""
        if secret:
            return render_screen(
                request,
                "notifications/channel_created.html",
                title=channel.name,
                object=channel,
                opts=self.opts,
                text=secret,
            )
        messages.success(request, _t("Saved. Send a test notification to check delivery."))
        url = reverse("admin:notices_notificationchannel_change", args=[channel.pk])
        return HttpResponseRedirect(url)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Allow deleting a channel with its notifications, which need no separate permission."""
        objects, counts, _needed, protected = super().get_deleted_objects(objs, request)
        return objects, counts, set(), protected

    def delete_model(self, request: HttpRequest, obj: NotificationChannel) -> None:
        """Delete through the service."""
        delete_channel(self.get_principal(request), obj)

    @display(description=_("destination"))
    def destination(self, channel: NotificationChannel) -> str:
        """Return the destination without secret parts."""
        return make_visible(channel.destination, 80)

    @display(description=_("events"))
    def event_titles(self, channel: NotificationChannel) -> str:
        """Return the titles of its events."""
        return "; ".join(str(EVENT_TITLES[event]) for event in channel.events) or _t("all events")

    @display(description=_("enabled"), boolean=True, ordering="enabled")
    def is_enabled(self, channel: NotificationChannel) -> bool:
        return channel.enabled

    @display(description=_("last notification"))
    def last_notification(self, channel: Any) -> Any:
        """Return the state of the last notification as a badge."""
        return render_state_badge(channel.latest_state) if channel.latest_state else "–"


@NotificationChannelAdmin.add_page("change", _("Channel"), required_actions=Action.VIEW_AUDIT)
def show_channel(visit: ObjectRequest) -> HttpResponseBase:
    """Show the form and the latest notifications, or update the channel."""
    channel: NotificationChannel = visit.object
    posted = visit.request.POST if visit.request.method == "POST" else None
    form = NotificationChannelForm(visit.principal, posted, channel=channel)
    if posted is not None:
        visit.principal.require(Action.MANAGE_NOTICES)
        if form.is_valid():
            try:
                _channel, secret = save_channel(visit.principal, form.build_spec(), channel)
            except Problem as problem:
                channel.refresh_from_db()
                add_problem_to_form(form, problem)
            else:
                admin: Any = visit.admin
                response: HttpResponseBase = admin.show_created_secret(
                    visit.request, channel, secret
                )
                return response
    notifications = list(channel.notices.all()[:MAX_NOTIFICATIONS_SHOWN])
    return visit.render_tab(
        "notifications/channel.html", channel=channel, form=form, notifications=notifications
    )


@NotificationChannelAdmin.add_object_action("test", required_actions=Action.MANAGE_NOTICES)
def send_channel_test(visit: ObjectRequest) -> None:
    """Send a test notification and show the result."""
    notification = send_test_notification(visit.principal, visit.object)
    if notification.state == Notification.State.SENT:
        messages.success(visit.request, _t("The receiver accepted the test notification."))
    else:
        message = _t("The test notification wasn't delivered: %(error)s")
        messages.error(visit.request, message % {"error": localize_text(notification.error)})


def render_state_badge(state: str) -> Any:
    """Return a notification's state as a badge."""
    # Capitalized: the word "pending" alone means a pending review.
    return render_badge(STATE_TONES[state], capfirst(Notification.State(state).label))


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
