"""Channels, their form and test."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base import (
    ObjectRequest,
    TabbedAdmin,
    add_problem_to_form,
    render_screen,
)
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import badge_html
from bonobot.core.admin.theme import (
    Checkbox,
    SecretInput,
    Select,
    Textarea,
    TextInput,
    display,
    register,
)
from bonobot.core.i18n.localization import localize_text
from bonobot.core.problems import Problem
from bonobot.core.text.masking import MASK
from bonobot.core.text.untrusted_text import make_visible
from bonobot.notifications.delivery import send_test
from bonobot.notifications.events import CHOSEN, EVENTS
from bonobot.notifications.models import SEVERITIES, Channel, Notice
from bonobot.notifications.services import NotificationChannelSpec, remove_channel, save_channel


def _build_secret_field(label: Any, help_text: Any) -> forms.CharField:
    return forms.CharField(
        label=label,
        required=False,
        help_text=help_text,
        widget=SecretInput(),
    )


class NotificationChannelForm(forms.Form):
    """Everything about a channel. Which parts show follows the kind."""

    name = forms.CharField(
        label=_("Name"), widget=TextInput, help_text=_("Who is told, such as “Operations”.")
    )
    kind = forms.ChoiceField(label=_("Kind"), choices=Channel.Kind.choices, widget=Select)
    addresses = forms.CharField(
        label=_("Addresses"),
        required=False,
        widget=Textarea(attrs={"rows": 3}),
        help_text=_("One on each line."),
    )
    url = _build_secret_field(
        _("URL"), _("Gets a POST of signed JSON. Sealed, as it may hold a key.")
    )
    secret = _build_secret_field(
        _("Signing secret"), _("Blank: one is made and shown once. Receivers check it.")
    )
    allow_private = forms.BooleanField(
        label=_("Allow a private address"),
        required=False,
        widget=Checkbox,
        help_text=_("For receivers in your own network; platform administrators only."),
    )
    events = forms.MultipleChoiceField(
        label=_("Events"),
        choices=[(code, _(EVENTS[code].title)) for code in CHOSEN],
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("None chosen: all of them, and those to come."),
    )
    minimum = forms.ChoiceField(
        label=_("Least severity"), choices=SEVERITIES, initial="info", widget=Select
    )
    enabled = forms.BooleanField(
        label=_("Switched on"), required=False, initial=True, widget=Checkbox
    )

    def __init__(
        self, principal: Principal, posted: Any = None, *, channel: Channel | None = None
    ) -> None:
        """Show what is stored, secrets masked."""
        first = {"kind": Channel.Kind.EMAIL if settings.BONOBOT_EMAIL_URL else Channel.Kind.WEBHOOK}
        super().__init__(posted, initial=build_initial(channel) if channel else first)
        if not principal.may(Action.ALLOW_PRIVATE_ADDRESS):
            self.fields["allow_private"].disabled = True

    def spec(self) -> NotificationChannelSpec:
        """Return what was said."""
        said = dict(self.cleaned_data)
        said["addresses"] = said["addresses"].replace(",", " ").split()
        return NotificationChannelSpec(**said)

    @property
    def mail_fields(self) -> list[forms.BoundField]:
        """Return what an e-mail channel has beside the rest."""
        return [self["addresses"]]

    @property
    def web_fields(self) -> list[forms.BoundField]:
        """Return what a webhook has beside the rest."""
        return [self["url"], self["secret"], self["allow_private"]]


def build_initial(channel: Channel) -> dict[str, Any]:
    """Return a stored channel as the form shows it."""
    plain = ("name", "kind", "allow_private", "events", "minimum", "enabled")
    return {
        **{name: getattr(channel, name) for name in plain},
        "addresses": "\n".join(channel.addresses),
        "url": MASK if channel.url else "",
        "secret": MASK if channel.secret else "",
    }


LATEST = 20


@register(Channel)
class NotificationChannelAdmin(TabbedAdmin):
    """The ways in which the active organization is told."""

    needs_to_view = (Action.VIEW_AUDIT,)
    needs_to_change = Action.MANAGE_NOTICES
    removing = _("Nobody is told by it any more.")
    list_display = ("name", "kind", "where", "told_of", "minimum", "on", "latest")
    list_filter = ("kind", "enabled")
    search_fields = ("name", "origin")
    change_list_template = "admin/notices/channels.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Channel]:
        """Return the channels with the state of what they were told last."""
        tried = Notice.objects.filter(channel=OuterRef("pk"), attempts__gt=0)
        latest = tried.order_by("-created_at").values("state")[:1]
        return super().get_queryset(request).annotate(latest_state=Subquery(latest))

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Offer none: a channel is removed on its own page."""
        return {}

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show our own form; a secret that was made up is shown in the answer alone."""
        principal = self.principal(request)
        principal.require(Action.MANAGE_NOTICES)
        form = NotificationChannelForm(principal, request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                channel, made = save_channel(principal, form.spec())
            except Problem as problem:
                add_problem_to_form(form, problem)
            else:
                return self.made(request, channel, made)
        return render_screen(
            request, "notices/add.html", title=_("Add a channel"), form=form, opts=self.opts
        )

    def made(self, request: HttpRequest, channel: Channel, made: str) -> HttpResponseBase:
        """Show a secret that was made up, once; otherwise go to the channel."""
        if made:
            return render_screen(
                request,
                "notices/made.html",
                title=channel.name,
                object=channel,
                opts=self.opts,
                text=made,
            )
        messages.success(request, _t("Saved. Send a test notice to see that it arrives."))
        address = reverse("admin:notices_channel_change", args=[channel.pk])
        return HttpResponseRedirect(address)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Name what goes: a channel with what it was told, which nobody deletes on its own."""
        found, counts, _needed, protected = super().get_deleted_objects(objs, request)
        return found, counts, set(), protected

    def delete_model(self, request: HttpRequest, obj: Channel) -> None:
        """Remove by the operation."""
        remove_channel(self.principal(request), obj)

    @display(description=_("goes to"))
    def where(self, channel: Channel) -> str:
        """Return where it leads, without what is secret."""
        return make_visible(channel.goes_to, 80)

    @display(description=_("told of"))
    def told_of(self, channel: Channel) -> str:
        """Return its events."""
        return "; ".join(str(TITLES[event]) for event in channel.events) or _t("everything")

    @display(description=_("on"), boolean=True, ordering="enabled")
    def on(self, channel: Channel) -> bool:
        """Return whether it is told anything."""
        return channel.enabled

    @display(description=_("last notice"))
    def latest(self, channel: Any) -> Any:
        """Return what became of the last notice."""
        return render_state_badge(channel.latest_state) if channel.latest_state else "–"


@NotificationChannelAdmin.add_page("change", _("Channel"), needs=Action.VIEW_AUDIT)
def show_channel(visit: ObjectRequest) -> HttpResponseBase:
    """Show the form with what is stored and the latest notices, or change the channel."""
    channel: Channel = visit.object
    posted = visit.request.POST if visit.request.method == "POST" else None
    form = NotificationChannelForm(visit.principal, posted, channel=channel)
    if posted is not None:
        visit.principal.require(Action.MANAGE_NOTICES)
        if form.is_valid():
            try:
                _row, made = save_channel(visit.principal, form.spec(), channel)
            except Problem as problem:
                channel.refresh_from_db()
                add_problem_to_form(form, problem)
            else:
                admin: Any = visit.admin
                answer: HttpResponseBase = admin.made(visit.request, channel, made)
                return answer
    notices = list(channel.notices.all()[:LATEST])
    return visit.show("notices/channel.html", channel=channel, form=form, notices=notices)


@NotificationChannelAdmin.add_deed("test", needs=Action.MANAGE_NOTICES)
def test(visit: ObjectRequest) -> None:
    """Send a test notice now and say what became of it."""
    notice = send_test(visit.principal, visit.object)
    if notice.state == Notice.State.SENT:
        messages.success(visit.request, _t("The test notice was taken by the receiver."))
    else:
        failed = _t("The test notice did not arrive: %(error)s")
        messages.error(visit.request, failed % {"error": localize_text(notice.error)})


def render_state_badge(state: str) -> Any:
    """Return a notice's state as a badge."""
    return badge_html(TONED[state], Notice.State(state).label)


# What a state means to the eye, in the words of the admin's tones.
TONED = {"waiting": "running", "sent": "ok", "failed": "failed", "withdrawn": "withdrawn"}
TITLES = {code: _(event.title) for code, event in EVENTS.items()}
