"""Models of health checks, error output, outages and unmonitored periods."""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel


class HealthCheck(OrganizationModel):
    """One contact with a server: time, latency and error."""

    class Kind(models.TextChoices):
        """The reason for the contact."""

        HEALTH = "health", _("health check")
        DISCOVERY = "discovery", _("discovery")
        TEST = "test", _("test")

    server = models.ForeignKey(
        "mcp_servers.Server", on_delete=models.CASCADE, related_name="checks"
    )
    kind = models.CharField(_("type"), max_length=10, choices=Kind)
    ok = models.BooleanField(_("succeeded"))
    latency_ms = models.PositiveIntegerField(_("latency (ms)"), null=True)
    code = models.CharField(_("code"), max_length=64, blank=True, default="")
    detail = models.TextField(_("details"), blank=True, default="")

    class Meta:
        db_table = "mcp_servers_check"
        ordering = ("-created_at",)
        verbose_name = _("check")
        verbose_name_plural = _("checks")
        indexes = (models.Index(fields=["server", "-created_at"], name="check_by_server"),)

    def __str__(self) -> str:
        return f"{self.kind} {'ok' if self.ok else self.code}"


class ErrorOutput(OrganizationModel):
    """The last stderr output of one child process of a stdio server.

    The ID is the child's own. `text` has at most 64 Ki characters, without secrets and terminal
    sequences, with hidden characters made visible. `ended` says how the child ended, or why it
    could not be started; blank while it runs.
    """

    server = models.ForeignKey(
        "mcp_servers.Server", on_delete=models.CASCADE, related_name="outputs"
    )
    process = models.CharField(_("process"), max_length=255, blank=True, default="")
    text = models.TextField(_("output"), blank=True, default="")
    ended = models.CharField(_("end"), max_length=500, blank=True, default="")

    class Meta:
        ordering = ("-created_at",)
        verbose_name = _("error output")
        verbose_name_plural = _("error outputs")
        indexes = (models.Index(fields=["server", "-created_at"], name="output_by_server"),)

    def __str__(self) -> str:
        return f"{self.process} {self.ended}".strip()


class Outage(OrganizationModel):
    """A period in which a server was unavailable or refused us; no `ended_at` while it lasts."""

    server = models.ForeignKey(
        "mcp_servers.Server", on_delete=models.CASCADE, related_name="outages"
    )
    began_at = models.DateTimeField(_("started"))
    ended_at = models.DateTimeField(_("ended"), null=True)
    code = models.CharField(_("code"), max_length=64)
    detail = models.TextField(_("details"), blank=True, default="")
    failures = models.PositiveIntegerField(_("failed checks"), default=1)

    class Meta:
        ordering = ("-began_at",)
        verbose_name = _("outage")
        verbose_name_plural = _("outages")
        constraints = (
            models.UniqueConstraint(
                fields=["server"], condition=Q(ended_at__isnull=True), name="outage_open_once"
            ),
        )
        indexes = (
            models.Index(fields=["server", "-began_at"], name="outage_by_server"),
            models.Index(fields=["organization", "-began_at"], name="outage_by_time"),
        )

    def __str__(self) -> str:
        return f"{self.code} since {self.began_at:%Y-%m-%d %H:%M}"


class UnmonitoredPeriod(OrganizationModel):
    """A period without contacts with a server: no worker ran, or it was disabled.

    It is saved by the contact that ends it; a current period follows from the server's own row.
    """

    server = models.ForeignKey(
        "mcp_servers.Server", on_delete=models.CASCADE, related_name="unasked"
    )
    began_at = models.DateTimeField(_("started"))
    ended_at = models.DateTimeField(_("ended"))

    class Meta:
        db_table = "mcp_servers_unasked"
        ordering = ("-began_at",)
        verbose_name = _("time without checks")
        verbose_name_plural = _("times without checks")
        constraints = (models.UniqueConstraint(fields=["server", "began_at"], name="unasked_once"),)
        indexes = (models.Index(fields=["server", "-ended_at"], name="unasked_by_server"),)

    def __str__(self) -> str:
        return f"since {self.began_at:%Y-%m-%d %H:%M}"
