"""Change and resource subscriptions."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel


class Followed(OrganizationModel):
    """Who has the server tell of a resource, whether it does, and how often it has.

    `holder` is the process that has it told, `beat_at` its sign of life (a lease); `wanted_at` is
    when some process last said that a client of its wants to be told. Clients compare `changes`.

    `subject` is the person through whose login it is told, where each signs in to the server for
    themselves; None where it is the same for all. `digest` is of both, the URI and the subject.
    """

    class State(models.TextChoices):
        """What the server says to being asked to tell of it."""

        ASKED = "asked", "asked"
        GRANTED = "granted", "granted"
        REFUSED = "refused", "refused"

    server = models.ForeignKey("mcp_servers.Server", on_delete=models.CASCADE, related_name="+")
    subject = models.UUIDField(null=True)
    uri = models.TextField()
    digest = models.CharField(max_length=64)
    state = models.CharField(
        max_length=8, choices=State.choices, default=State.ASKED, db_default=State.ASKED
    )
    changes = models.BigIntegerField(default=0, db_default=0)
    wanted_at = models.DateTimeField(db_index=True)
    holder = models.UUIDField(null=True)
    beat_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = _("followed resource")
        verbose_name_plural = _("followed resources")
        indexes = (models.Index(fields=["holder"], name="followed_by_holder"),)
        constraints = (
            models.UniqueConstraint(fields=["server", "digest"], name="followed_once_a_server"),
        )

    def __str__(self) -> str:
        return f"followed resource of {self.server_id}"


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
