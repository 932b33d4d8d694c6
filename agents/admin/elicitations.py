"""Elicitation requests in the admin: the inbox and the page of one request."""

from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import READERS
from agents.admin.approvals import PartialNameFilter, PersonRequestAdmin
from agents.elicitations.forms import ElicitationField, fields_of
from agents.elicitations.services import answer, may_answer
from agents.models import Question
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

SAID = {
    "accept": _("Sent to the server as soon as the session goes on."),
    "decline": _("Declined; the server is told."),
    "cancel": _("Dismissed; the server is told that nobody answered."),
}
WARNINGS = {
    "not_encrypted": _("The page is not encrypted: what you enter there can be read on the way."),
    "unusual_host": _("The host's name has unusual letters: it may only look like another one."),
    "sign_in_in_address": _("The address holds a sign-in: what stands before the @ is no host."),
}


@register(Question)
class ElicitationRequestAdmin(PersonRequestAdmin):
    """The active organization's elicitation requests; members see their own."""

    tones: ClassVar[dict[str, str]] = {
        "accept": "approved",
        "decline": "deny",
        "cancel": "refused",
        "expired": "refused",
    }
    list_display = ("asks", "state_now", "server", "agent_name", "asked_of", "asked_at", "until")
    list_filter = (
        ("state", MultipleChoicesDropdownFilter),
        ("agent__name", PartialNameFilter),
        ("server_name", PartialNameFilter),
        ("created_at", DateTimeRangeFilter),
    )
    search_fields = ("message", "server_name", "agent__name", "requested_by")
    change_list_template = "admin/questions/list.html"

    @display(description=_("question"), ordering="message")
    def asks(self, question: Question) -> str:
        """Return the start of the message."""
        return make_visible(question.message, 120)

    @display(description=_("asked of"), ordering="requested_by")
    def asked_of(self, question: Question) -> str:
        """Return the person who is asked."""
        return make_visible(question.requested_by, 60)


class ElicitationForm(forms.Form):
    """The server's form with Django fields; the service validates the values."""

    def __init__(self, fields: tuple[ElicitationField, ...], *args: Any, **kwargs: Any) -> None:
        """Name fields by their index: the server's names are untrusted text."""
        super().__init__(*args, **kwargs)
        self.asked = fields
        for place, field in enumerate(fields):
            self.fields[f"value_{place}"] = _build_field(field)

    def content(self) -> dict[str, Any]:
        """Return the entered values by the server's field names."""
        if not self.is_valid():
            first = next(iter(self.errors.values()))
            raise InvalidInput(str(first[0]), field="content", code="bad_answer")
        said = {
            field.name: _value(field, self.cleaned_data[f"value_{place}"])
            for place, field in enumerate(self.asked)
        }
        return {name: value for name, value in said.items() if value is not None}


def build_form(question: Question) -> ElicitationForm:
    """Return the empty form of a request; field ids are unique on a page."""
    fields = tuple(fields_of(question.schema)) if question.mode == Question.Mode.FORM else ()
    return ElicitationForm(fields, auto_id=f"q{question.pk.hex}_%s")


@ElicitationRequestAdmin.add_page("change", _("Question"), needs=READERS)
def show_elicitation_request(visit: ObjectRequest) -> HttpResponseBase:
    """Show the request, its server, and the possible answers."""
    question: Question = visit.object
    secret = [flag.partition(":")[2] for flag in question.flags if flag.startswith("secret:")]
    return visit.show(
        "questions/question.html",
        question=question,
        badge=ElicitationRequestAdmin.badge(question),
        answerable=question.answerable(timezone.now()),
        mine=visit.principal.may(Action.RUN_AGENTS) and may_answer(visit.principal, question),
        form=build_form(question),
        secret=secret,
        warnings=[WARNINGS[flag] for flag in question.flags if flag in WARNINGS],
    )


@ElicitationRequestAdmin.add_deed("answer", needs=Action.RUN_AGENTS)
def answer_elicitation_request(visit: ObjectRequest) -> None:
    """Accept with the entered values, decline, or cancel."""
    question: Question = visit.object
    said = visit.request.POST.get("answer", "")
    content: dict[str, Any] = {}
    if said == "accept" and question.mode == Question.Mode.FORM:
        content = ElicitationForm(tuple(fields_of(question.schema)), visit.request.POST).content()
    answer(visit.principal, question, said, content)
    messages.success(visit.request, str(SAID[said]))


def _build_field(field: ElicitationField) -> forms.Field:
    common: dict[str, Any] = {
        "label": make_visible(field.title or field.name, 200) + (" *" if field.required else ""),
        "help_text": make_visible(field.description, 1_000),
        "required": False,
        "initial": field.default if isinstance(field.default, str | int | float | list) else None,
    }
    shown = [(value, make_visible(title, 200)) for value, title in field.options]
    if field.kind == "choice":
        return forms.ChoiceField(choices=[("", "–"), *shown], widget=Select, **common)
    if field.kind == "choices":
        several = forms.SelectMultiple(attrs={"class": "bb-input"})
        return forms.MultipleChoiceField(choices=shown, widget=several, **common)
    if field.kind == "boolean":
        return forms.BooleanField(widget=Checkbox, **common)
    if field.kind == "integer":
        return forms.IntegerField(widget=IntegerInput, **common)
    if field.kind == "number":
        return forms.FloatField(widget=IntegerInput, **common)
    plain = TextInput(attrs={"autocomplete": "off"})
    return forms.CharField(widget=plain, **common)


def _value(field: ElicitationField, entered: Any) -> Any:
    """Return a value for the protocol; None if nothing was entered."""
    if field.kind == "boolean":
        return bool(entered)
    return None if entered in (None, "", []) else entered
