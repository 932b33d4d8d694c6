"""Models of notification channels and the outbox."""

from datetime import timedelta
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel, ScopedQuerySet
from bonobot.core.crypto.encrypted_fields import SealedTextField
from bonobot.core.db.changed_fields import SavesChangedFields
from bonobot.core.i18n.localization import localize_text
from bonobot.notifications.events import EVENTS, Severity, is_event_wanted

SEVERITY_NAMES = {"info": _("info"), "warning": _("warning"), "critical": _("critical")}
SEVERITIES = [(severity.word, SEVERITY_NAMES[severity.word]) for severity in Severity]


class NotificationChannelKind(models.TextChoices):
    """The kind of a notification channel."""

    EMAIL = "email", _("email")
    WEBHOOK = "webhook", _("webhook")


class NotificationChannel(SavesChangedFields, OrganizationModel):
    """A notification channel of an organization: email addresses or a webhook.

    A webhook's URL is encrypted like its signing secret, because many URLs contain a key; `origin`
    is the part that may be shown.
    """

    Kind = NotificationChannelKind

    name = models.CharField(_("name"), max_length=255)
    kind = models.CharField(_("type"), max_length=8, choices=Kind)
    addresses = models.JSONField(_("addresses"), default=list, blank=True)
    url = SealedTextField(_("URL"), blank=True, default="", label="notices.channel.url")
    origin = models.CharField(_("origin"), max_length=255, blank=True, default="")
    secret = SealedTextField(
        _("signing secret"), blank=True, default="", label="notices.channel.secret"
    )
    allow_private = models.BooleanField(_("private address allowed"), default=False)
    events = models.JSONField(_("events"), default=list, blank=True)
    minimum_severity = models.CharField(
        _("minimum severity"),
        max_length=8,
        choices=SEVERITIES,
        default=Severity.INFO.word,
        db_column="minimum",
    )
    enabled = models.BooleanField(_("enabled"), default=True)

    objects: ClassVar = ScopedQuerySet.as_manager()

    class Meta:
        db_table = "notices_channel"
        ordering = ("name",)
        verbose_name = _("notification channel")
        verbose_name_plural = _("notification channels")
        constraints = (
            models.UniqueConstraint(fields=["organization", "name"], name="channel_name_once"),
            models.CheckConstraint(
                condition=Q(kind__in=NotificationChannelKind.values), name="channel_kind"
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def destination(self) -> str:
        """The destination without secret parts."""
        if self.kind == self.Kind.EMAIL:
            return ", ".join(self.addresses)
        return f"{self.origin}/…"

    def wants_event(self, event: str) -> bool:
        return is_event_wanted(
            EVENTS[event], events=self.events, minimum_severity=self.minimum_severity
        )


class NotificationQuerySet(ScopedQuerySet):
    """Notifications by state."""

    def due(self) -> "NotificationQuerySet":
        """Filter waiting notifications of enabled channels whose next attempt is due."""
        return self.filter(
            state=Notification.State.WAITING,
            next_attempt_at__lte=timezone.now(),
            channel__enabled=True,
        )

    def given_up(self) -> "NotificationQuerySet":
        """Filter notifications of the last day that finally failed, except tests."""
        since = timezone.now() - timedelta(days=1)
        rows = self.filter(state=Notification.State.FAILED, created_at__gte=since)
        return rows.exclude(event="test")

    def unattempted(self) -> "NotificationQuerySet":
        """Filter waiting notifications without an attempt."""
        return self.filter(state=Notification.State.WAITING, attempts=0)


class Notification(OrganizationModel):
    """A notification of one channel: a row of the outbox.

    It is created in the transaction of its event. `topic` identifies the occasion (an outage, a
    budget period): the notification of its end goes to the channels that were notified of its
    beginning.
    """

    class State(models.TextChoices):
        """The state of the delivery."""

        WAITING = "waiting", _("pending")
        SENT = "sent", _("sent")
        FAILED = "failed", _("failed")
        WITHDRAWN = "withdrawn", _("canceled")

    channel = models.ForeignKey(
        NotificationChannel, on_delete=models.CASCADE, related_name="notices"
    )
    event = models.CharField(_("event"), max_length=32)
    severity = models.CharField(_("severity"), max_length=8, choices=SEVERITIES)
    subject_type = models.CharField(_("affected object"), max_length=64)
    subject_id = models.CharField(max_length=255)
    subject_name = models.CharField(_("affected object"), max_length=255)
    text = models.TextField(_("text"))
    link = models.CharField(max_length=500, blank=True, default="")
    topic = models.CharField(max_length=255)
    state = models.CharField(
        _("status"), max_length=9, choices=State, default=State.WAITING, editable=False
    )
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    next_attempt_at = models.DateTimeField(_("next attempt"), null=True)
    sent_at = models.DateTimeField(_("sent"), null=True)
    error = models.TextField(_("error"), blank=True, default="")

    objects: ClassVar = NotificationQuerySet.as_manager()

    class Meta:
        db_table = "notices_notice"
        ordering = ("-created_at",)
        verbose_name = _("notification")
        verbose_name_plural = _("notifications")
        constraints = (
            # One notification per channel, event and topic.
            models.UniqueConstraint(fields=["channel", "event", "topic"], name="notice_once"),
        )
        indexes = (
            models.Index(
                fields=["next_attempt_at"], condition=Q(state="waiting"), name="notice_due"
            ),
            models.Index(fields=["organization", "-created_at"], name="notice_by_age"),
            models.Index(fields=["channel", "subject_id", "-created_at"], name="notice_of_subject"),
        )

    def __str__(self) -> str:
        return f"{_t(EVENTS[self.event].title)}: {self.about}"

    @property
    def about(self) -> str:
        """The subject's name; localized for an organization."""
        has_own_name = self.subject_type != "organization"
        return str(self.subject_name) if has_own_name else localize_text(self.subject_name)
