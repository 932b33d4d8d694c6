"""Channels in the admin: who is told of what, tried with a button."""

from typing import Any

from django.contrib import messages
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.lib.admin import display, register
from bonobot.lib.problems import Problem
from bonobot.lib.translating import localized
from bonobot.lib.untrusted import visible
from bonobot.notices.admin.forms import ChannelForm
from bonobot.notices.channels import remove_channel, save_channel
from bonobot.notices.delivering import send_test
from bonobot.notices.events import EVENTS
from bonobot.notices.models import Channel, Notice
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import PagedAdmin, Visit, refuse, screen
from bonobot.tenancy.templatetags.bonobot import badge_html

LATEST = 20


@register(Channel)
class ChannelAdmin(PagedAdmin):
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
        form = ChannelForm(principal, request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                channel, made = save_channel(principal, form.spec())
            except Problem as problem:
                refuse(form, problem)
            else:
                return self.made(request, channel, made)
        return screen(
            request, "notices/add.html", title=_("Add a channel"), form=form, opts=self.opts
        )

    def made(self, request: HttpRequest, channel: Channel, made: str) -> HttpResponseBase:
        """Show a secret that was made up, once; otherwise go to the channel."""
        if made:
            return screen(
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
        return visible(channel.goes_to, 80)

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
        return state_badge(channel.latest_state) if channel.latest_state else "–"


@ChannelAdmin.add_page("change", _("Channel"), needs=Action.VIEW_AUDIT)
def channel_page(visit: Visit) -> HttpResponseBase:
    """Show the form with what is stored and the latest notices, or change the channel."""
    channel: Channel = visit.object
    posted = visit.request.POST if visit.request.method == "POST" else None
    form = ChannelForm(visit.principal, posted, channel=channel)
    if posted is not None:
        visit.principal.require(Action.MANAGE_NOTICES)
        if form.is_valid():
            try:
                _row, made = save_channel(visit.principal, form.spec(), channel)
            except Problem as problem:
                channel.refresh_from_db()
                refuse(form, problem)
            else:
                admin: Any = visit.admin
                answer: HttpResponseBase = admin.made(visit.request, channel, made)
                return answer
    notices = list(channel.notices.all()[:LATEST])
    return visit.show("notices/channel.html", channel=channel, form=form, notices=notices)


@ChannelAdmin.add_deed("test", needs=Action.MANAGE_NOTICES)
def test(visit: Visit) -> None:
    """Send a test notice now and say what became of it."""
    notice = send_test(visit.principal, visit.object)
    if notice.state == Notice.State.SENT:
        messages.success(visit.request, _t("The test notice was taken by the receiver."))
    else:
        failed = _t("The test notice did not arrive: %(error)s")
        messages.error(visit.request, failed % {"error": localized(notice.error)})


def state_badge(state: str) -> Any:
    """Return a notice's state as a badge."""
    return badge_html(TONED[state], Notice.State(state).label)


# What a state means to the eye, in the words of the admin's tones.
TONED = {"waiting": "running", "sent": "ok", "failed": "failed", "withdrawn": "withdrawn"}
TITLES = {code: _(event.title) for code, event in EVENTS.items()}
