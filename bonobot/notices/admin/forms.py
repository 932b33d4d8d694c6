"""The form of a channel: what a person says, as a `ChannelSpec`; secrets go in and never out."""

from typing import Any

from django import forms
from django.conf import settings
from django.utils.translation import gettext_lazy as _

from bonobot.lib.admin import Checkbox, SecretInput, Select, Textarea, TextInput
from bonobot.lib.masking import MASK
from bonobot.notices.channels import ChannelSpec
from bonobot.notices.events import CHOSEN, EVENTS
from bonobot.notices.models import SEVERITIES, Channel
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action


def _sealed(label: Any, help_text: Any) -> forms.CharField:
    return forms.CharField(
        label=label,
        required=False,
        help_text=help_text,
        widget=SecretInput(),
    )


class ChannelForm(forms.Form):
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
    url = _sealed(_("URL"), _("Gets a POST of signed JSON. Sealed, as it may hold a key."))
    secret = _sealed(
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
        super().__init__(posted, initial=initial_of(channel) if channel else first)
        if not principal.may(Action.ALLOW_PRIVATE_ADDRESS):
            self.fields["allow_private"].disabled = True

    def spec(self) -> ChannelSpec:
        """Return what was said."""
        said = dict(self.cleaned_data)
        said["addresses"] = said["addresses"].replace(",", " ").split()
        return ChannelSpec(**said)

    @property
    def mail_fields(self) -> list[forms.BoundField]:
        """Return what an e-mail channel has beside the rest."""
        return [self["addresses"]]

    @property
    def web_fields(self) -> list[forms.BoundField]:
        """Return what a webhook has beside the rest."""
        return [self["url"], self["secret"], self["allow_private"]]


def initial_of(channel: Channel) -> dict[str, Any]:
    """Return a stored channel as the form shows it."""
    plain = ("name", "kind", "allow_private", "events", "minimum", "enabled")
    return {
        **{name: getattr(channel, name) for name in plain},
        "addresses": "\n".join(channel.addresses),
        "url": MASK if channel.url else "",
        "secret": MASK if channel.secret else "",
    }
