"""Outage: from the first contact that failed to the first that succeeded again."""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from bonobot.tenancy.scoped import OrganizationModel


class Outage(OrganizationModel):
    """A time in which a server was away or closed to us, and why; it is open while that lasts."""

    server = models.ForeignKey(
        "mcp_servers.Server", on_delete=models.CASCADE, related_name="outages"
    )
    began_at = models.DateTimeField(_("began"))
    ended_at = models.DateTimeField(_("ended"), null=True)
    code = models.CharField(_("code"), max_length=64)
    detail = models.TextField(_("detail"), blank=True, default="")
    failures = models.PositiveIntegerField(_("failed contacts"), default=1)

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
