"""Watch: what is known of a server's change notices."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.tenancy.scoped import OrganizationModel


class Watch(OrganizationModel):
    """Who listens to a server, what was heard, and whether its catalogue has to be read again.

    `asks` names the lists whose changes the server says that it tells over HTTP. `holder` is the
    process that listens, `beat_at` its sign of life (a lease); `refused_at` says that the server
    has no such stream after all. `stale_at` is when the catalogue was last said to be out of date,
    `reread_after` the moment before which it is not read again.
    """

    server = models.OneToOneField(
        "mcp_servers.Server", on_delete=models.CASCADE, related_name="watch"
    )
    asks = models.CharField(max_length=40, blank=True, default="")
    holder = models.UUIDField(null=True)
    beat_at = models.DateTimeField(null=True)
    listening_since = models.DateTimeField(null=True)
    noticed_at = models.DateTimeField(null=True)
    refused_at = models.DateTimeField(null=True)
    code = models.CharField(max_length=64, blank=True, default="")
    detail = models.TextField(blank=True, default="")
    stale_at = models.DateTimeField(null=True, db_index=True)
    reread_after = models.DateTimeField(null=True)

    class Meta:
        verbose_name = _("watch")
        verbose_name_plural = _("watches")
        indexes = (models.Index(fields=["holder"], name="watch_by_holder"),)

    def __str__(self) -> str:
        return f"watch of {self.server_id}"
