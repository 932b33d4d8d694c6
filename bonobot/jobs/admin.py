"""Schedules in the admin."""

from typing import Any

from celery import current_app
from django import forms
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django_celery_beat.models import PeriodicTask

from bonobot.accounts.admin_base import ServiceFormAdmin
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import ago
from bonobot.core.admin.theme import Checkbox, IntegerInput, display, register
from bonobot.core.i18n.localization import format_number, localize_text
from bonobot.core.process_cache import compute_once
from bonobot.core.text.syntax_highlighting import render_sentence
from bonobot.jobs.schedules import (
    MAX_ESSENTIAL_PERIODS,
    MAX_PERIOD_S,
    SCHEDULE_LABELS,
    compute_period_s,
    read_default_period_s,
    save_schedule,
)


class ScheduleForm(forms.ModelForm):
    """The period of a schedule and whether it is enabled."""

    every = forms.IntegerField(
        label=_("Interval (seconds)"), min_value=1, max_value=MAX_PERIOD_S, widget=IntegerInput
    )
    enabled = forms.BooleanField(label=_("Enabled"), required=False, widget=Checkbox)

    class Meta:
        model = PeriodicTask
        fields = ("enabled",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Show the default period; disable the switch of essential schedules."""
        super().__init__(*args, **kwargs)
        row = self.instance
        self.fields["every"].initial = compute_period_s(row)
        self.fields["every"].help_text = _t("Default: %(n)d.") % {"n": read_default_period_s(row)}
        if max_period_s := MAX_ESSENTIAL_PERIODS.get(row.name):
            help_text = _t(
                "This job is required. It can't be disabled and must run at least every "
                "%(n)d seconds."
            )
            self.fields["enabled"].disabled = True
            self.fields["enabled"].help_text = help_text % {"n": max_period_s}


@register(PeriodicTask)
class ScheduleAdmin(ServiceFormAdmin):
    """The scheduler's entries, which are defined in code."""

    platform_only = True
    counted_as = _("schedules")
    needs_to_change = Action.MANAGE_ORGANIZATION
    can_add = False  # entries are defined in code
    can_delete = False  # schedules can only be disabled
    form = ScheduleForm
    fields = ("label", "summary", "every", "enabled", "last_run", "run_count")
    readonly_fields = ("label", "summary", "last_run", "run_count")
    list_display = (
        "label",
        "summary",
        "period",
        "default_period",
        "is_enabled",
        "last_run",
        "run_count",
    )
    list_select_related = ("interval",)
    ordering = ("name",)
    change_list_template = "admin/schedules.html"

    @display(description=_("schedule"), ordering="name")
    def label(self, row: PeriodicTask) -> str:
        return str(SCHEDULE_LABELS.get(row.name, row.name))

    @display(description=_("description"))
    def summary(self, row: PeriodicTask) -> SafeString:
        """Return the first sentence of the task's docstring."""
        return format_html(
            '<span class="bb-cell">{}</span>',
            render_sentence(localize_text(_get_task_summary(row.task))),
        )

    @display(description=_("interval"), ordering="interval__every")
    def period(self, row: PeriodicTask) -> str:
        return _format_period(compute_period_s(row))

    @display(description=_("default"))
    def default_period(self, row: PeriodicTask) -> str:
        """Return the default period."""
        return _format_period(read_default_period_s(row))

    @display(description=_("enabled"), boolean=True, ordering="enabled")
    def is_enabled(self, row: PeriodicTask) -> bool:
        return bool(row.enabled)

    @display(description=_("last run"), ordering="last_run_at")
    def last_run(self, row: PeriodicTask) -> Any:
        """Return when the scheduler last sent the task."""
        return format_html('<span class="bb-nowrap">{}</span>', ago(row.last_run_at))

    @display(description=_("runs"), ordering="total_run_count")
    def run_count(self, row: PeriodicTask) -> str:
        """Return how often the scheduler has sent the task."""
        return format_number(row.total_run_count)

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> PeriodicTask:
        """Save through the service."""
        cleaned_data, row = form.cleaned_data, PeriodicTask.objects.get(pk=form.instance.pk)
        save_schedule(
            self.get_principal(request),
            row,
            period_s=cleaned_data["every"],
            enabled=cleaned_data["enabled"],
        )
        return row


def _format_period(seconds: int) -> str:
    """Return a period in the largest unit that divides it."""
    units = ((86_400, _t("%(n)d d")), (3_600, _t("%(n)d h")), (60, _t("%(n)d min")))
    for size, text in units:
        if seconds and seconds % size == 0:
            return text % {"n": seconds // size}
    return _t("%(n)d s") % {"n": seconds}


@compute_once
def _get_task_summary(name: str) -> str:
    _import_tasks()
    task = current_app.tasks.get(name)
    first_line = str(task.__doc__ or "").strip().partition("\n")[0] if task else ""
    return first_line.partition(";")[0].rstrip(".") or name


@compute_once
def _import_tasks() -> None:
    """Import all tasks, once: the web process doesn't, and each time Celery checks all models."""
    current_app.loader.import_default_modules()
