"""Elicitation requests in the admin: the inbox and the page of one request."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import READERS
from agents.admin.approvals import PartialNameFilter, PersonRequestAdmin
from agents.elicitations.requested_schemas import ElicitationField, iterate_fields
from agents.elicitations.services import answer_request, can_answer
from agents.models import ElicitationRequest
from bonobot.accounts.admin_base import ObjectRequest
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import (
    Checkbox,
    DateTimeRangeFilter,
    IntegerInput,
    MultipleChoicesDropdownFilter,
    Select,
    TextInput,
    display,
    register,
)
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible

ANSWER_MESSAGES = {
    "accept": _("The answer is sent to the server when the session continues."),
    "decline": _("Declined. The server will be notified."),
    "cancel": _("Dismissed. The server will be notified that there is no answer."),
}
WARNINGS = {
    "not_encrypted": _("The page isn't encrypted. Anything you enter can be read in transit."),
    "unusual_host": _(
        "The host name contains unusual characters and may imitate another host name."
    ),
    "sign_in_in_address": _("The URL contains credentials: the part before the @ isn't the host."),
}


@register(ElicitationRequest)
class ElicitationRequestAdmin(PersonRequestAdmin):
    """The active organization's elicitation requests; members see their own."""

    list_display = (
        "request_text",
        "state_badge",
        "server",
        "agent_name",
        "addressee",
        "requested",
        "answered_or_expires",
    )
    list_filter = (
        ("state", MultipleChoicesDropdownFilter),
        ("agent__name", PartialNameFilter),
        ("server_name", PartialNameFilter),
        ("created_at", DateTimeRangeFilter),
    )
    search_fields = ("message", "server_name", "agent__name", "requested_by")
    change_list_template = "admin/elicitations/list.html"

    @display(description=_("request"), ordering="message")
    def request_text(self, elicitation_request: ElicitationRequest) -> str:
        """Return the start of the message."""
        return make_visible(elicitation_request.message, 120)

    @display(description=_("addressed to"), ordering="requested_by")
    def addressee(self, elicitation_request: ElicitationRequest) -> str:
        return make_visible(elicitation_request.requested_by, 60)


class ElicitationForm(forms.Form):
    """The server's form with Django fields; the service validates the values."""

    def __init__(self, fields: tuple[ElicitationField, ...], *args: Any, **kwargs: Any) -> None:
        """Name fields by their index: the server's names are untrusted text."""
        super().__init__(*args, **kwargs)
        self.elicitation_fields = fields
        for index, field in enumerate(fields):
            self.fields[f"value_{index}"] = _build_field(field)

    def parse_content(self) -> dict[str, Any]:
        """Return the entered values by the server's field names; None for a blank field."""
        if not self.is_valid():
            first_errors = next(iter(self.errors.values()))
            raise InvalidInput(str(first_errors[0]), field="content", code="bad_answer")
        return {
            field.name: _clean_value(field, self.cleaned_data[f"value_{index}"])
            for index, field in enumerate(self.elicitation_fields)
        }


def build_form(elicitation_request: ElicitationRequest) -> ElicitationForm:
    """Return the empty form of a request; field ids are unique on a page."""
    fields = (
        tuple(iterate_fields(elicitation_request.schema))
        if elicitation_request.mode == ElicitationRequest.Mode.FORM
        else ()
    )
    return ElicitationForm(fields, auto_id=f"q{elicitation_request.pk.hex}_%s")


@ElicitationRequestAdmin.add_page("change", _("Request"), required_actions=READERS)
def show_elicitation_request(visit: ObjectRequest) -> HttpResponseBase:
    """Show the request, its server, and the possible answers."""
    elicitation_request: ElicitationRequest = visit.object
    secret_fields = [
        flag.partition(":")[2] for flag in elicitation_request.flags if flag.startswith("secret:")
    ]
    return visit.render_tab(
        "elicitations/request.html",
        elicitation=elicitation_request,
        badge=ElicitationRequestAdmin.render_badge(elicitation_request),
        answerable=elicitation_request.is_answerable(timezone.now()),
        mine=visit.principal.may(Action.RUN_AGENTS)
        and can_answer(visit.principal, elicitation_request),
        form=build_form(elicitation_request),
        secret=secret_fields,
        warnings=[WARNINGS[flag] for flag in elicitation_request.flags if flag in WARNINGS],
    )


@ElicitationRequestAdmin.add_object_action("answer", required_actions=Action.RUN_AGENTS)
def handle_answer(visit: ObjectRequest) -> None:
    """Accept with the entered values, decline, or cancel."""
    elicitation_request: ElicitationRequest = visit.object
    chosen_action = visit.request.POST.get("answer", "")
    content: dict[str, Any] = {}
    if chosen_action == "accept" and elicitation_request.mode == ElicitationRequest.Mode.FORM:
        content = ElicitationForm(
            tuple(iterate_fields(elicitation_request.schema)), visit.request.POST
        ).parse_content()
    answer_request(visit.principal, elicitation_request, chosen_action, content)
    messages.success(visit.request, str(ANSWER_MESSAGES[chosen_action]))


def _build_field(field: ElicitationField) -> forms.Field:
    common: dict[str, Any] = {
        "label": make_visible(field.title or field.name, 200) + (" *" if field.required else ""),
        "help_text": make_visible(field.description, 1_000),
        "required": False,
        "initial": field.default if isinstance(field.default, str | int | float | list) else None,
    }
    choices = [(value, make_visible(title, 200)) for value, title in field.options]
    if field.kind == "choice":
        return forms.ChoiceField(choices=[("", "–"), *choices], widget=Select, **common)
    if field.kind == "choices":
        select = forms.SelectMultiple(attrs={"class": "bb-input"})
        return forms.MultipleChoiceField(choices=choices, widget=select, **common)
    if field.kind == "boolean":
        return forms.BooleanField(widget=Checkbox, **common)
    if field.kind == "integer":
        return forms.IntegerField(widget=IntegerInput, **common)
    if field.kind == "number":
        return forms.FloatField(widget=IntegerInput, **common)
    widget = TextInput(attrs={"autocomplete": "off"})
    return forms.CharField(widget=widget, **common)


def _clean_value(field: ElicitationField, entered_value: Any) -> Any:
    """Return a value for the protocol; None if nothing was entered."""
    if field.kind == "boolean":
        return bool(entered_value)
    return None if entered_value in (None, "", []) else entered_value
