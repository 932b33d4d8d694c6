"""Models of subscriptions to changes of servers and resources."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel


class ResourceSubscription(OrganizationModel):
    """A subscription to a resource of a server, with its state and number of changes.

    `holder` is the subscribed process, `heartbeat_at` its last heartbeat (a lease). At
    `last_requested_at`, a process last reported a subscribed client. Clients compare `changes`.

    `subject` is the person whose sign-in is used, if each person signs in to the server separately;
    None if it is the same for all. `digest` is over the URI and the subject.
    """

    class State(models.TextChoices):
        """The server's answer to the subscription."""

        ASKED = "asked", "requested"
        GRANTED = "granted", "granted"
        REFUSED = "refused", "rejected"

    server = models.ForeignKey("mcp_servers.Server", on_delete=models.CASCADE, related_name="+")
    subject = models.UUIDField(null=True)
    uri = models.TextField()
    digest = models.CharField(max_length=64)
    state = models.CharField(
        max_length=8, choices=State.choices, default=State.ASKED, db_default=State.ASKED
    )
    changes = models.BigIntegerField(default=0, db_default=0)
    last_requested_at = models.DateTimeField(db_index=True, db_column="wanted_at")
    holder = models.UUIDField(null=True)
    heartbeat_at = models.DateTimeField(null=True, db_column="beat_at")

    class Meta:
        db_table = "mcp_servers_followed"
        verbose_name = _("subscribed resource")
        verbose_name_plural = _("subscribed resources")
        indexes = (models.Index(fields=["holder"], name="followed_by_holder"),)
        constraints = (
            models.UniqueConstraint(fields=["server", "digest"], name="followed_once_a_server"),
        )

    def __str__(self) -> str:
        return f"followed resource of {self.server_id}"


class ChangeSubscription(OrganizationModel):
    """The change notification stream of a server, and whether its definitions are stale.

    `asks` names the lists for which the server announces changes over HTTP. `holder` is the
    listening process, `heartbeat_at` its last heartbeat (a lease); `refused_at` is set if the
    server has no such stream after all. `stale_at` is the time of the last change notification;
    discovery doesn't run before `refresh_after`.
    """

    server = models.OneToOneField(
        "mcp_servers.Server", on_delete=models.CASCADE, related_name="change_subscription"
    )
    asks = models.CharField(max_length=40, blank=True, default="")
    holder = models.UUIDField(null=True)
    heartbeat_at = models.DateTimeField(null=True, db_column="beat_at")
    listening_since = models.DateTimeField(null=True)
    notified_at = models.DateTimeField(null=True, db_column="noticed_at")
    refused_at = models.DateTimeField(null=True)
    code = models.CharField(max_length=64, blank=True, default="")
    detail = models.TextField(blank=True, default="")
    stale_at = models.DateTimeField(null=True, db_index=True)
    refresh_after = models.DateTimeField(null=True, db_column="reread_after")

    class Meta:
        db_table = "mcp_servers_watch"
        verbose_name = _("watch")
        verbose_name_plural = _("watches")
        indexes = (models.Index(fields=["holder"], name="watch_by_holder"),)

    def __str__(self) -> str:
        return f"watch of {self.server_id}"
