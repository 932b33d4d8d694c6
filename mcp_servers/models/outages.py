"""Outage and Unasked: when a server was away, and when nobody asked whether it was there."""

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


class Unasked(OrganizationModel):
    """A time in which nobody asked a server: no worker ran, or it was switched off.

    Nothing is known of such a time. It is written by the contact that ends it; what lasts is read
    from the server's own row.
    """

    server = models.ForeignKey(
        "mcp_servers.Server", on_delete=models.CASCADE, related_name="unasked"
    )
    began_at = models.DateTimeField(_("began"))
    ended_at = models.DateTimeField(_("ended"))

    class Meta:
        ordering = ("-began_at",)
        verbose_name = _("time without contacts")
        verbose_name_plural = _("times without contacts")
        constraints = (models.UniqueConstraint(fields=["server", "began_at"], name="unasked_once"),)
        indexes = (models.Index(fields=["server", "-ended_at"], name="unasked_by_server"),)

    def __str__(self) -> str:
        return f"since {self.began_at:%Y-%m-%d %H:%M}"
