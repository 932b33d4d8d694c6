"""Check: the history of a server's health."""

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
