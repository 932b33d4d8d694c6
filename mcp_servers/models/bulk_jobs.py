"""BulkJob, BulkJobItem."""

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel


class Round(OrganizationModel):
    """What one person asked to be done to many servers; its stops say how far it is.

    `held_until` is the lease of the worker that goes it; who finds it over takes the round up.
    """

    class Kind(models.TextChoices):
        """What is done at each server."""

        TEST = "test", _("Test the connection")
        REFRESH = "refresh", _("Refresh what they offer")
        APPROVE = "approve", _("Approve what waits")
        ENABLE = "enable", _("Switch on")
        DISABLE = "disable", _("Switch off")
        REMOVE = "remove", _("Remove")

    kind = models.CharField(max_length=8, choices=Kind)
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    held_until = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True, db_index=True)

    class Meta:
        verbose_name = _("round")
        verbose_name_plural = _("rounds")

    def __str__(self) -> str:
        return str(self.get_kind_display())


class Stop(models.Model):
    """One server of a round: what is to be done with it, and what came of it.

    The server's id and name are copied: a stop outlives the server that it removed. `said` holds
    what was confirmed, such as the digests that are approved.
    """

    class State(models.TextChoices):
        """How far it is."""

        WAITING = "waiting", _("waiting")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        FAILED = "failed", _("failed")

    round = models.ForeignKey(Round, on_delete=models.CASCADE, related_name="stops")
    server_id = models.UUIDField()
    server_name = models.CharField(max_length=255)
    state = models.CharField(max_length=8, choices=State, default=State.WAITING)
    said = models.JSONField(default=dict)
    code = models.CharField(max_length=64, blank=True, default="")
    detail = models.TextField(blank=True, default="")

    class Meta:
        ordering = ("pk",)
        indexes = (models.Index(fields=["round", "state"], name="stop_by_state"),)

    def __str__(self) -> str:
        return f"{self.server_name} {self.state}"
