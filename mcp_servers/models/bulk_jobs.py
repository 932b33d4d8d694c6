"""Models of bulk jobs on servers."""

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel


class BulkJob(OrganizationModel):
    """A bulk job: an action on many servers; its stops have the progress.

    `held_until` is the lease of the worker; another worker continues the job once it has expired.
    """

    class Kind(models.TextChoices):
        """The action on each server."""

        TEST = "test", _("Test connection")
        REFRESH = "refresh", _("Refresh definitions")
        APPROVE = "approve", _("Approve pending definitions")
        ENABLE = "enable", _("Enable")
        DISABLE = "disable", _("Disable")
        REMOVE = "remove", _("Delete")

    kind = models.CharField(max_length=8, choices=Kind)
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    held_until = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True, db_index=True)

    class Meta:
        db_table = "mcp_servers_round"
        verbose_name = _("bulk job")
        verbose_name_plural = _("bulk jobs")

    def __str__(self) -> str:
        return str(self.get_kind_display())


class BulkJobItem(models.Model):
    """One server of a bulk job, with its state and result.

    The server's ID and name are copied, because the job may delete the server. `said` has what the
    person confirmed, such as the digests to approve.
    """

    class State(models.TextChoices):
        """The progress of one server."""

        WAITING = "waiting", _("pending")
        RUNNING = "running", _("running")
        DONE = "done", _("completed")
        FAILED = "failed", _("failed")

    round = models.ForeignKey(BulkJob, on_delete=models.CASCADE, related_name="stops")
    server_id = models.UUIDField()
    server_name = models.CharField(max_length=255)
    state = models.CharField(max_length=8, choices=State, default=State.WAITING)
    said = models.JSONField(default=dict)
    code = models.CharField(max_length=64, blank=True, default="")
    detail = models.TextField(blank=True, default="")

    class Meta:
        db_table = "mcp_servers_stop"
        ordering = ("pk",)
        indexes = (models.Index(fields=["round", "state"], name="stop_by_state"),)

    def __str__(self) -> str:
        return f"{self.server_name} {self.state}"
