"""Elicitation requests in the admin: the inbox and the page of one request."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import QueryDict
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import READERS
from agents.admin.approvals import PartialNameFilter, PersonRequestAdmin
from agents.elicitations.requested_schemas import ElicitationField, iterate_fields
from agents.elicitations.services import answer_request, can_answer
from agents.models import ElicitationRequest
from bonobot.accounts.admin_base import ObjectRequest
from bonobot.accounts.admin_base.responses import FRAGMENT_HEADER, render_fragment
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import (
    Checkbox,
    ChoicesCheckboxFilter,
    DateTimeRangeFilter,
    IntegerInput,
    Select,
    TextInput,
    display,
    register,
)
from bonobot.core.i18n.localization import localize_problem
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
        ("state", ChoicesCheckboxFilter),
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

    def list_content(self) -> dict[str, Any]:
        """Return the valid values by the server's field names; None for a blank field."""
        return {
            field.name: _clean_value(field, self.cleaned_data[f"value_{index}"])
            for index, field in enumerate(self.elicitation_fields)
        }

    def add_problem(self, problem: InvalidInput) -> None:
        """Add a problem at its field, with the label that the person sees instead of its name."""
        text = localize_problem(problem)
        for index, field in enumerate(self.elicitation_fields):
            if problem.field == f"content.{field.name}":
                label = make_visible(field.title or field.name, 200)
                self.add_error(f"value_{index}", text.replace(f"`{field.name}`", label))
                return
        self.add_error(None, text)


def build_form(
    elicitation_request: ElicitationRequest, entered: QueryDict | None = None
) -> ElicitationForm:
    """Return the form of a request with what was entered; field ids are unique on a page."""
    fields = (
        tuple(iterate_fields(elicitation_request.schema))
        if elicitation_request.mode == ElicitationRequest.Mode.FORM
        else ()
    )
    return ElicitationForm(fields, entered, auto_id=f"q{elicitation_request.pk.hex}_%s")


@ElicitationRequestAdmin.add_page("change", _("Request"), required_actions=READERS)
def show_elicitation_request(visit: ObjectRequest) -> HttpResponseBase:
    """Show the request, its server, and the possible answers."""
    return _render_request(visit, build_form(visit.object))


def _render_request(
    visit: ObjectRequest, form: ElicitationForm, status: int = 200
) -> HttpResponseBase:
    elicitation_request: ElicitationRequest = visit.object
    secret_fields = [
        flag.partition(":")[2] for flag in elicitation_request.flags if flag.startswith("secret:")
    ]
    return visit.render_tab(
        "elicitations/request.html",
        status=status,
        elicitation=elicitation_request,
        badge=ElicitationRequestAdmin.render_badge(elicitation_request),
        answerable=elicitation_request.is_answerable(timezone.now()),
        mine=visit.principal.may(Action.RUN_AGENTS)
        and can_answer(visit.principal, elicitation_request),
        form=form,
        secret=secret_fields,
        warnings=[WARNINGS[flag] for flag in elicitation_request.flags if flag in WARNINGS],
    )


@ElicitationRequestAdmin.add_object_action("answer", required_actions=Action.RUN_AGENTS)
def handle_answer(visit: ObjectRequest) -> HttpResponseBase | None:
    """Accept with the entered values, decline, or cancel; show the form again if it has errors."""
    request, elicitation_request = visit.request, visit.object
    chosen_action = request.POST.get("answer", "")
    has_form = elicitation_request.mode == ElicitationRequest.Mode.FORM
    if (
        chosen_action == "accept"
        and has_form
        and elicitation_request.is_answerable(timezone.now())
        and can_answer(visit.principal, elicitation_request)
    ):
        form = build_form(elicitation_request, request.POST)
        if not _send_form(visit, form):
            return _show_errors(visit, form)
    else:
        answer_request(visit.principal, elicitation_request, chosen_action)
    text = str(ANSWER_MESSAGES[chosen_action])
    if FRAGMENT_HEADER in request.headers:
        return render_fragment(request, "elicitations/answered.html", text=text)
    messages.success(request, text)
    return None


def _send_form(visit: ObjectRequest, form: ElicitationForm) -> bool:
    """Accept with the form's values; return False if the form has errors, which it then shows."""
    if not form.is_valid():
        return False
    try:
        answer_request(visit.principal, visit.object, "accept", form.list_content())
    except InvalidInput as problem:
        form.add_problem(problem)
    return form.is_valid()


def _show_errors(visit: ObjectRequest, form: ElicitationForm) -> HttpResponseBase:
    if FRAGMENT_HEADER not in visit.request.headers:
        return _render_request(visit, form, status=400)
    return render_fragment(
        visit.request,
        "elicitations/answer_form.html",
        status=400,
        elicitation=visit.object,
        form=form,
        is_in_place=True,
    )


def _build_field(field: ElicitationField) -> forms.Field:
    common: dict[str, Any] = {
        "label": make_visible(field.title or field.name, 200),
        "help_text": make_visible(field.description, 1_000),
        # A checkbox that must be checked is another thing: `false` is an answer.
        "required": field.required and field.kind != "boolean",
        "initial": field.default if isinstance(field.default, str | int | float | list) else None,
    }
    bounds: dict[str, Any] = {
        "min_value": _to_bound(field.least),
        "max_value": _to_bound(field.most),
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
        return forms.IntegerField(widget=IntegerInput, **bounds, **common)
    if field.kind == "number":
        return forms.FloatField(widget=IntegerInput, **bounds, **common)
    widget = TextInput(attrs={"autocomplete": "off"})
    lengths: dict[str, Any] = {
        "min_length": _to_bound(field.least),
        "max_length": _to_bound(field.most),
    }
    return forms.CharField(widget=widget, **lengths, **common)


def _to_bound(number: float | None) -> float | None:
    """Return a bound of a field; browsers don't accept `12.0` as the maximum of an integer."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _clean_value(field: ElicitationField, entered_value: Any) -> Any:
    """Return a value for the protocol; None if nothing was entered."""
    if field.kind == "boolean":
        return bool(entered_value)
    return None if entered_value in (None, "", []) else entered_value
