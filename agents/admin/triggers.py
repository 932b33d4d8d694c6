"""The triggers tab of a workflow: schedules and webhooks with their last runs."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.workflows import WorkflowAdmin
from agents.models import Session, Trigger, Workflow
from agents.workflows.schedules import MAX_PERIOD_S, MIN_PERIOD_S
from agents.workflows.triggers import (
    MAX_PER_MINUTE,
    TriggerSpec,
    build_webhook_url,
    delete_trigger,
    get_trigger,
    list_triggers,
    replace_secret,
    save_trigger,
)
from bonobot.accounts.admin_base import ObjectRequest, add_problem_to_form, redirect_to_page
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import Checkbox, IntegerInput, Select, Textarea, TextInput
from bonobot.core.problems import Problem

STATUS_LABELS: dict[str | None, Any] = dict(Session.Status.choices)


class TriggerForm(forms.Form):
    """The form of a trigger."""

    name = forms.SlugField(label=_("Name"), max_length=64, widget=TextInput)
    kind = forms.ChoiceField(label=_("Type"), choices=Trigger.Kind.choices, widget=Select)
    every_s = forms.IntegerField(
        label=_("Interval (seconds)"),
        required=False,
        min_value=MIN_PERIOD_S,
        max_value=MAX_PERIOD_S,
        widget=IntegerInput,
    )
    cron = forms.CharField(
        label=_("Cron expression"),
        required=False,
        max_length=100,
        widget=TextInput,
        help_text=_(
            "Replaces the interval. Minute, hour, day of month, month, day of week, such as "
            "30 6 * * mon-fri."
        ),
    )
    time_zone = forms.CharField(
        label=_("Time zone"),
        max_length=64,
        initial="UTC",
        widget=TextInput,
        help_text=_("For the cron expression, such as Europe/Berlin."),
    )
    inputs = forms.JSONField(
        label=_("Inputs"),
        required=False,
        initial=dict,
        widget=Textarea(attrs={"rows": 6, "spellcheck": "false", "class": "bb-code"}),
        help_text=_(
            "Inputs of each run, as JSON. For a webhook, ${/body/…} refers to a value in "
            "the request body. If empty, the request body is used as the inputs."
        ),
    )
    per_minute = forms.IntegerField(
        label=_("Webhook runs per minute"),
        initial=10,
        min_value=1,
        max_value=MAX_PER_MINUTE,
        widget=IntegerInput,
    )
    enabled = forms.BooleanField(label=_("Enabled"), required=False, initial=True, widget=Checkbox)

    def clean_inputs(self) -> dict[str, Any]:
        """Return the inputs; raises `ValidationError` if they are not an object."""
        inputs = self.cleaned_data["inputs"]
        if inputs is None or isinstance(inputs, dict):
            return inputs or {}
        raise forms.ValidationError(_("Enter a JSON object: {…}."))


@WorkflowAdmin.add_page("triggers", _("Triggers"), order=15)
def show_triggers(visit: ObjectRequest) -> HttpResponseBase:
    """Show the workflow's triggers; create or update one."""
    workflow: Workflow = visit.object
    trigger_id = visit.request.GET.get("trigger")
    selected_trigger = get_trigger(workflow, trigger_id) if trigger_id else None
    posted = visit.request.POST if visit.request.method == "POST" else None
    form = _build_form(posted, selected_trigger)
    if posted is not None:
        visit.principal.require(Action.MANAGE_WORKFLOWS)
        response = _save_trigger(visit, form, selected_trigger) if form.is_valid() else None
        if response is not None:
            return response
    return visit.render_tab(
        "workflows/triggers.html",
        **_build_context(visit),
        form=form,
        selected_trigger=selected_trigger,
    )


@WorkflowAdmin.add_object_action("replace_secret", required_actions=Action.MANAGE_WORKFLOWS)
def handle_replace_secret(visit: ObjectRequest) -> HttpResponseBase:
    """Replace the secret of a webhook and show it once."""
    trigger = get_trigger(visit.object, visit.request.POST.get("trigger", ""))
    return _render_secret(visit, trigger, replace_secret(visit.principal, trigger))


@WorkflowAdmin.add_object_action("toggle_trigger", required_actions=Action.MANAGE_WORKFLOWS)
def set_trigger_enabled(visit: ObjectRequest) -> HttpResponseBase:
    trigger = get_trigger(visit.object, visit.request.POST.get("trigger", ""))
    enabled = visit.request.POST.get("enabled") == "1"
    save_trigger(
        visit.principal, visit.object, TriggerSpec(name=trigger.name, enabled=enabled), trigger
    )
    return redirect_to_page(visit, "triggers")


@WorkflowAdmin.add_object_action("remove_trigger", required_actions=Action.MANAGE_WORKFLOWS)
def handle_delete_trigger(visit: ObjectRequest) -> HttpResponseBase:
    delete_trigger(
        visit.principal, get_trigger(visit.object, visit.request.POST.get("trigger", ""))
    )
    messages.success(visit.request, _t("The trigger was deleted. Runs it started are kept."))
    return redirect_to_page(visit, "triggers")


def _build_context(visit: ObjectRequest) -> dict[str, Any]:
    workflow: Workflow = visit.object
    # With the columns that the query adds.
    triggers: list[Any] = list(list_triggers(workflow))
    return {
        "workflow": workflow,
        "triggers": [
            (trigger, build_webhook_url(trigger), STATUS_LABELS.get(trigger.last_status, ""))
            for trigger in triggers
        ],
        "may_manage": visit.principal.may(Action.MANAGE_WORKFLOWS),
    }


def _render_secret(visit: ObjectRequest, trigger: Trigger, secret: str) -> HttpResponseBase:
    """Render a webhook's secret directly, because it is shown only once."""
    response = visit.render_tab(
        "workflows/trigger_secret.html",
        workflow=visit.object,
        trigger=trigger,
        address=build_webhook_url(trigger),
        text=secret,
    )
    response["Cache-Control"] = "no-store"
    return response


def _build_form(posted: Any, selected_trigger: Trigger | None) -> TriggerForm:
    if selected_trigger is None:
        return TriggerForm(posted)
    names = TriggerForm.base_fields
    form = TriggerForm(posted, initial={name: getattr(selected_trigger, name) for name in names})
    form.fields["kind"].disabled = True
    return form


def _save_trigger(
    visit: ObjectRequest, form: TriggerForm, existing_trigger: Trigger | None
) -> HttpResponseBase | None:
    """Save the form; show a new secret, or return to the triggers. None if the form has errors."""
    spec = TriggerSpec(**form.cleaned_data)
    try:
        trigger, secret = save_trigger(visit.principal, visit.object, spec, existing_trigger)
    except Problem as problem:
        add_problem_to_form(form, problem)
        return None
    messages.success(visit.request, _t("The trigger was saved."))
    if secret:
        return _render_secret(visit, trigger, secret)
    return redirect_to_page(visit, "triggers")
