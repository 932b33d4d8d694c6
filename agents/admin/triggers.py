"""The triggers tab of a workflow: schedules and webhooks with their last runs."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.workflows import WorkflowAdmin
from agents.models import Trigger, Workflow
from agents.workflows.queries import build_webhook_url, list_triggers
from agents.workflows.schedule_times import LONGEST_S, SHORTEST_S
from agents.workflows.triggers import (
    MOST_PER_MINUTE,
    TriggerSpec,
    get_trigger,
    remove_trigger,
    replace_secret,
    save_trigger,
)
from bonobot.accounts.admin_base import ObjectRequest, add_problem_to_form, redirect_to_page
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import Checkbox, IntegerInput, Select, Textarea, TextInput
from bonobot.core.problems import Problem


class TriggerForm(forms.Form):
    """The form of a trigger."""

    name = forms.SlugField(label=_("Name"), max_length=64, widget=TextInput)
    kind = forms.ChoiceField(label=_("Started by"), choices=Trigger.Kind.choices, widget=Select)
    every_s = forms.IntegerField(
        label=_("Every … seconds"),
        required=False,
        min_value=SHORTEST_S,
        max_value=LONGEST_S,
        widget=IntegerInput,
    )
    cron = forms.CharField(
        label=_("Or a cron expression"),
        required=False,
        max_length=100,
        widget=TextInput,
        help_text=_("Minute, hour, day of month, month, day of week: 30 6 * * mon-fri."),
    )
    time_zone = forms.CharField(
        label=_("Time zone of the expression"),
        max_length=64,
        initial="UTC",
        widget=TextInput,
        help_text=_("Such as Europe/Berlin."),
    )
    inputs = forms.JSONField(
        label=_("Inputs"),
        required=False,
        initial=dict,
        widget=Textarea(attrs={"rows": 6, "spellcheck": "false", "class": "bb-code"}),
        help_text=_(
            "Of each run, as JSON. A webhook's may hold ${/body/…}, which points into what was "
            "sent; left empty, what was sent are the inputs."
        ),
    )
    per_minute = forms.IntegerField(
        label=_("Runs a minute that a webhook may start"),
        initial=10,
        min_value=1,
        max_value=MOST_PER_MINUTE,
        widget=IntegerInput,
    )
    enabled = forms.BooleanField(
        label=_("Switched on"), required=False, initial=True, widget=Checkbox
    )

    def clean_inputs(self) -> dict[str, Any]:
        """Return the inputs; raises `ValidationError` if they are not an object."""
        found = self.cleaned_data["inputs"]
        if found is None or isinstance(found, dict):
            return found or {}
        raise forms.ValidationError(_("Write one object: {…}."))


@WorkflowAdmin.add_page("triggers", _("Triggers"), order=15)
def show_triggers(visit: ObjectRequest) -> HttpResponseBase:
    """Show the workflow's triggers; create or update one."""
    workflow: Workflow = visit.object
    wanted = visit.request.GET.get("trigger")
    chosen = get_trigger(workflow, wanted) if wanted else None
    posted = visit.request.POST if visit.request.method == "POST" else None
    form = _form(posted, chosen)
    if posted is not None:
        visit.principal.require(Action.MANAGE_WORKFLOWS)
        if form.is_valid() and (saved := _save_trigger(visit, form, chosen)):
            trigger, text = saved
            messages.success(visit.request, _t("The trigger is kept."))
            return (
                _render_secret(visit, trigger, text)
                if text
                else redirect_to_page(visit, "triggers")
            )
    return visit.show("workflows/triggers.html", **_build_context(visit), form=form, chosen=chosen)


@WorkflowAdmin.add_deed("replace_secret", needs=Action.MANAGE_WORKFLOWS)
def replace(visit: ObjectRequest) -> HttpResponseBase:
    """Replace the secret of a webhook and show it once."""
    trigger = get_trigger(visit.object, visit.request.POST.get("trigger", ""))
    return _render_secret(visit, trigger, replace_secret(visit.principal, trigger))


@WorkflowAdmin.add_deed("switch_trigger", needs=Action.MANAGE_WORKFLOWS)
def set_trigger_enabled(visit: ObjectRequest) -> HttpResponseBase:
    """Enable or disable a trigger."""
    trigger = get_trigger(visit.object, visit.request.POST.get("trigger", ""))
    enabled = visit.request.POST.get("enabled") == "1"
    save_trigger(
        visit.principal, visit.object, TriggerSpec(name=trigger.name, enabled=enabled), trigger
    )
    return redirect_to_page(visit, "triggers")


@WorkflowAdmin.add_deed("remove_trigger", needs=Action.MANAGE_WORKFLOWS)
def remove(visit: ObjectRequest) -> HttpResponseBase:
    """Delete a trigger."""
    remove_trigger(
        visit.principal, get_trigger(visit.object, visit.request.POST.get("trigger", ""))
    )
    messages.success(visit.request, _t("The trigger is gone; what it started stays."))
    return redirect_to_page(visit, "triggers")


def _build_context(visit: ObjectRequest) -> dict[str, Any]:
    workflow: Workflow = visit.object
    return {
        "workflow": workflow,
        "triggers": [(one, build_webhook_url(one)) for one in list_triggers(workflow)],
        "may_manage": visit.principal.may(Action.MANAGE_WORKFLOWS),
    }


def _render_secret(visit: ObjectRequest, trigger: Trigger, text: str) -> HttpResponseBase:
    """Render a webhook's secret directly, because it is shown only once."""
    shown = visit.show(
        "workflows/secret.html",
        workflow=visit.object,
        trigger=trigger,
        address=build_webhook_url(trigger),
        text=text,
    )
    shown["Cache-Control"] = "no-store"
    return shown


def _form(posted: Any, chosen: Trigger | None) -> TriggerForm:
    if chosen is None:
        return TriggerForm(posted)
    names = TriggerForm.base_fields
    form = TriggerForm(posted, initial={name: getattr(chosen, name) for name in names})
    form.fields["kind"].disabled = True
    return form


def _save_trigger(
    visit: ObjectRequest, form: TriggerForm, chosen: Trigger | None
) -> tuple[Trigger, str] | None:
    try:
        return save_trigger(visit.principal, visit.object, TriggerSpec(**form.cleaned_data), chosen)
    except Problem as problem:
        add_problem_to_form(form, problem)
        return None
