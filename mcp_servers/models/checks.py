"""Check and ErrorOutput: the history of a server's health, and what its programs complained of."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.tenancy.scoped import OrganizationModel


class Check(OrganizationModel):
    """One contact with a server: when, how long, and what went wrong."""

    class Kind(models.TextChoices):
        """Why we asked."""

        HEALTH = "health", _("health check")
        DISCOVERY = "discovery", _("discovery")
        TEST = "test", _("test")

    server = models.ForeignKey(
        "mcp_servers.Server", on_delete=models.CASCADE, related_name="checks"
    )
    kind = models.CharField(_("kind"), max_length=10, choices=Kind)
    ok = models.BooleanField(_("ok"))
    latency_ms = models.PositiveIntegerField(_("latency (ms)"), null=True)
    code = models.CharField(_("code"), max_length=64, blank=True, default="")
    detail = models.TextField(_("detail"), blank=True, default="")

    class Meta:
        ordering = ("-created_at",)
        verbose_name = _("check")
        verbose_name_plural = _("checks")
        indexes = (models.Index(fields=["server", "-created_at"], name="check_by_server"),)

    def __str__(self) -> str:
        return f"{self.kind} {'ok' if self.ok else self.code}"


class ErrorOutput(OrganizationModel):
    """What one child of a stdio server wrote to stderr last, in whatever process it ran.

    The id is the child's own. `text` is at most 64 KiB of characters, without secrets and terminal
    sequences, hidden characters made visible. `ended` says how the child ended, or why it could not
    be started; blank while it runs. An observation: no decision depends on it.
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
