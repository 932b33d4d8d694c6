"""Models of bulk jobs on servers."""

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel


class BulkJob(OrganizationModel):
    """A bulk job: an action on many servers; its items have the progress.

    Another worker continues the job once the worker's lease has expired (`lease_expires_at`).
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
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.SET_NULL,
        related_name="+",
        db_column="asked_by_id",
    )
    lease_expires_at = models.DateTimeField(null=True, db_column="held_until")
    finished_at = models.DateTimeField(null=True, db_index=True)

    class Meta:
        db_table = "mcp_servers_round"
        verbose_name = _("bulk job")
        verbose_name_plural = _("bulk jobs")

    def __str__(self) -> str:
        return str(self.get_kind_display())


class BulkJobItem(models.Model):
    """One server of a bulk job, with its state and result.

    The server's ID and name are copied, because the job may delete the server. `confirmed` is what
    the person confirmed, such as the digests to approve.
    """

    class State(models.TextChoices):
        """The progress of one server."""

        WAITING = "waiting", _("pending")
        RUNNING = "running", _("running")
        DONE = "done", _("completed")
        FAILED = "failed", _("failed")

    job = models.ForeignKey(
        BulkJob, on_delete=models.CASCADE, related_name="items", db_column="round_id"
    )
    server_id = models.UUIDField()
    server_name = models.CharField(max_length=255)
    state = models.CharField(max_length=8, choices=State, default=State.WAITING)
    confirmed = models.JSONField(default=dict, db_column="said")
    code = models.CharField(max_length=64, blank=True, default="")
    detail = models.TextField(blank=True, default="")

    class Meta:
        db_table = "mcp_servers_stop"
        ordering = ("pk",)
        indexes = (models.Index(fields=["job", "state"], name="stop_by_state"),)

    def __str__(self) -> str:
        return f"{self.server_name} {self.state}"
