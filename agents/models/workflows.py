"""Models of workflows, their versions, triggers and runs."""

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from agents.models.agents import filter_by_visible_agents
from agents.models.sessions import Session
from bonobot.accounts.models.abstract_models import (
    GovernedModel,
    GovernedQuerySet,
    OrganizationModel,
    ScopedQuerySet,
)
from bonobot.accounts.principals import Principal
from bonobot.core.crypto.encrypted_fields import SealedTextField
from bonobot.core.db.changed_fields import SavesChangedFields
from bonobot.ledger.actor_names import get_actor_name

MAX_SOURCE_LENGTH = 64 * 1024
# For workflows without a time limit.
DEFAULT_RUN_S = 3_600


class WorkflowQuerySet(GovernedQuerySet):
    """Filters for workflows."""

    def visible_to(self, principal: Principal) -> "WorkflowQuerySet":
        """Keep workflows that a principal may see: all for readers, else those of their agents."""
        visible: WorkflowQuerySet = filter_by_visible_agents(self, principal)
        return visible


class Workflow(GovernedModel):
    """A declared sequence of calls of an agent's tools, with inputs, conditions and outputs.

    `source` is the text, `definition` the parsed values, `digest` is over those. Other agents can
    use it as a tool in the approved version: `approved_digest`.
    """

    name = models.SlugField(_("name"), max_length=64)
    description = models.CharField(_("description"), max_length=500, blank=True, default="")
    agent = models.ForeignKey(
        "agents.Agent",
        on_delete=models.CASCADE,
        related_name="workflows",
        verbose_name=_("runs as"),
    )
    source = models.TextField(_("definition"), max_length=MAX_SOURCE_LENGTH)
    definition = models.JSONField(default=dict)
    enabled = models.BooleanField(_("enabled"), default=True)
    version = models.PositiveIntegerField(_("version"), default=1)
    digest = models.CharField(max_length=64)
    approved_digest = models.CharField(max_length=64, blank=True, default="")

    objects: ClassVar = WorkflowQuerySet.as_manager()

    class Meta:
        ordering = ("name",)
        verbose_name = _("workflow")
        verbose_name_plural = _("workflows")
        constraints = (
            models.UniqueConstraint(fields=["organization", "name"], name="workflow_name"),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def state(self) -> str:
        """The review state as a tool, as for definitions."""
        if self.approved_digest == self.digest:
            return "approved"
        return "changed" if self.approved_digest else "pending"


class WorkflowVersion(OrganizationModel):
    """One version of a workflow."""

    workflow = models.ForeignKey(Workflow, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    digest = models.CharField(max_length=64)
    source = models.TextField()
    created_by = models.CharField(max_length=255, db_column="made_by")

    class Meta:
        ordering = ("-number",)
        verbose_name = _("workflow version")
        verbose_name_plural = _("workflow versions")
        constraints = (
            models.UniqueConstraint(fields=["workflow", "number"], name="workflow_version_once"),
        )

    def __str__(self) -> str:
        return f"{self.workflow} {self.number}"


class Trigger(SavesChangedFields, OrganizationModel):
    """Starts a workflow automatically: a schedule, or a webhook with a secret.

    `inputs` are the inputs of each run; for a webhook they may reference the request
    (`${/body/alerts/0/labels/alertname}`), or be empty to use the request body. A schedule has a
    period in seconds or a cron expression in a time zone; `next_at` is when it is due.
    """

    class Kind(models.TextChoices):
        """The kind of trigger."""

        SCHEDULE = "schedule", _("schedule")
        WEBHOOK = "webhook", _("webhook")

    workflow = models.ForeignKey(Workflow, on_delete=models.CASCADE, related_name="triggers")
    name = models.SlugField(_("name"), max_length=64)
    kind = models.CharField(_("type"), max_length=10, choices=Kind)
    enabled = models.BooleanField(_("enabled"), default=True)
    inputs = models.JSONField(_("inputs"), default=dict, blank=True)
    every_s = models.PositiveIntegerField(_("interval (seconds)"), null=True, blank=True)
    cron = models.CharField(_("cron expression"), max_length=100, blank=True, default="")
    time_zone = models.CharField(_("time zone"), max_length=64, default="UTC")
    next_at = models.DateTimeField(_("next run"), null=True)
    secret = SealedTextField(blank=True, default="")
    per_minute = models.PositiveIntegerField(_("runs per minute"), default=10)
    last_at = models.DateTimeField(_("last run"), null=True)
    # Why the last run didn't start; blank if it did.
    last_code = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        ordering = ("name",)
        verbose_name = _("trigger")
        verbose_name_plural = _("triggers")
        constraints = (
            models.UniqueConstraint(fields=["workflow", "name"], name="trigger_name"),
            models.CheckConstraint(
                condition=Q(kind="webhook", every_s=None, cron="")
                | Q(kind="schedule", every_s=None) & ~Q(cron="")
                | Q(kind="schedule", every_s__isnull=False, cron=""),
                name="trigger_has_one_time",
            ),
        )
        indexes = (models.Index(fields=["enabled", "next_at"], name="trigger_due"),)

    def __str__(self) -> str:
        return self.name

    @property
    def label(self) -> str:
        """The label in sessions and the audit log."""
        return f"{self.kind} {self.name}"


class WorkflowRunQuerySet(ScopedQuerySet):
    """Filters for runs."""

    def visible_to(self, principal: Principal) -> "WorkflowRunQuerySet":
        """Keep runs whose session a principal may read."""
        return self.filter(session__in=Session.objects.visible_to(principal))


class WorkflowRun(OrganizationModel):
    """A session that runs a workflow, with the definition at its start."""

    class Via(models.TextChoices):
        """What started the run."""

        PERSON = "person", _("a person or client")
        SCHEDULE = "schedule", _("a schedule")
        WEBHOOK = "webhook", _("a webhook")
        AGENT = "agent", _("an agent")

    session = models.OneToOneField(Session, on_delete=models.CASCADE, related_name="workflow_run")
    workflow = models.ForeignKey(
        Workflow, on_delete=models.SET_NULL, null=True, related_name="runs"
    )
    name = models.CharField(_("workflow"), max_length=64)
    version = models.PositiveIntegerField(_("version"))
    definition = models.JSONField()
    inputs = models.JSONField(_("inputs"), default=dict)
    outputs = models.JSONField(_("outputs"), null=True)
    via = models.CharField(_("started by"), max_length=10, choices=Via, default=Via.PERSON)
    trigger = models.ForeignKey(Trigger, on_delete=models.SET_NULL, null=True, related_name="runs")
    # The webhook sender's delivery ID; a repeated one starts no run.
    delivery = models.CharField(max_length=255, blank=True, default="")

    objects: ClassVar = WorkflowRunQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        verbose_name = _("workflow run")
        verbose_name_plural = _("workflow runs")
        constraints = (
            models.UniqueConstraint(
                fields=["trigger", "delivery"], condition=~Q(delivery=""), name="delivery_once"
            ),
        )
        indexes = (
            models.Index(fields=["workflow", "-created_at"], name="run_by_workflow"),
            models.Index(fields=["trigger", "-created_at"], name="run_by_trigger"),
        )

    def __str__(self) -> str:
        return f"{self.name} {self.created_at:%Y-%m-%d %H:%M}"

    @property
    def starter(self) -> str:
        """Who started the run: a person or client, or a trigger in the reader's language."""
        session = self.session
        if self.via in Trigger.Kind.values:
            name = session.started_by.removeprefix(f"{self.via} ")
            return f"{capfirst(Trigger.Kind(self.via).label)}: {name}"
        return get_actor_name(session.started_by_kind, session.started_by_id, session.started_by)
