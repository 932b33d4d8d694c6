"""Channel, Notice."""

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


class Channel(SavesChangedFields, OrganizationModel):
    """A way to tell people of an organization: e-mail addresses, or a webhook.

    A webhook's address is sealed like its signing secret, because many carry a key in their path;
    `origin` is what may be shown of it.
    """

    class Kind(models.TextChoices):
        """How it is told."""

        EMAIL = "email", _("e-mail")
        WEBHOOK = "webhook", _("webhook")

    name = models.CharField(_("name"), max_length=255)
    kind = models.CharField(_("kind"), max_length=8, choices=Kind)
    addresses = models.JSONField(_("addresses"), default=list, blank=True)
    url = SealedTextField(_("URL"), blank=True, default="")
    origin = models.CharField(_("origin"), max_length=255, blank=True, default="")
    secret = SealedTextField(_("signing secret"), blank=True, default="")
    allow_private = models.BooleanField(_("private address allowed"), default=False)
    events = models.JSONField(_("events"), default=list, blank=True)
    minimum = models.CharField(
        _("least severity"), max_length=8, choices=SEVERITIES, default=Severity.INFO.word
    )
    enabled = models.BooleanField(_("enabled"), default=True)

    objects: ClassVar = ScopedQuerySet.as_manager()

    class Meta:
        ordering = ("name",)
        verbose_name = _("notice channel")
        verbose_name_plural = _("notice channels")
        constraints = (
            models.UniqueConstraint(fields=["organization", "name"], name="channel_name_once"),
            models.CheckConstraint(condition=Q(kind__in=["email", "webhook"]), name="channel_kind"),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def goes_to(self) -> str:
        """Say where it leads, without what is secret."""
        if self.kind == self.Kind.EMAIL:
            return ", ".join(self.addresses)
        return f"{self.origin}/…"

    def wants(self, event: str) -> bool:
        """Tell whether it is told of an event."""
        return is_event_wanted(EVENTS[event], events=self.events, minimum=self.minimum)


class NoticeQuerySet(ScopedQuerySet):
    """Notices by what becomes of them."""

    def due(self) -> "NoticeQuerySet":
        """Keep those that wait and whose time has come, of channels that are on."""
        return self.filter(
            state=Notice.State.WAITING,
            next_attempt_at__lte=timezone.now(),
            channel__enabled=True,
        )

    def given_up(self) -> "NoticeQuerySet":
        """Keep those of the last day that nobody tries to deliver any more; tests don't count."""
        since = timezone.now() - timedelta(days=1)
        rows = self.filter(state=Notice.State.FAILED, created_at__gte=since)
        return rows.exclude(event="test")

    def untold(self) -> "NoticeQuerySet":
        """Keep those that nobody has tried to deliver yet."""
        return self.filter(state=Notice.State.WAITING, attempts=0)


class Notice(OrganizationModel):
    """One thing that one channel is told: a row of the outbox.

    It is written in the transaction of its cause, so that both are kept or lost together. `topic`
    names the occasion (an outage, a period of a budget): what is told of its end goes to those
    who were told of its beginning.
    """

    class State(models.TextChoices):
        """What became of it."""

        WAITING = "waiting", _("waits")
        SENT = "sent", _("sent")
        FAILED = "failed", _("given up")
        WITHDRAWN = "withdrawn", _("withdrawn")

    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, related_name="notices")
    event = models.CharField(_("event"), max_length=32)
    severity = models.CharField(_("severity"), max_length=8, choices=SEVERITIES)
    subject_type = models.CharField(_("about"), max_length=64)
    subject_id = models.CharField(max_length=255)
    subject_name = models.CharField(_("about"), max_length=255)
    text = models.TextField(_("text"))
    link = models.CharField(max_length=500, blank=True, default="")
    topic = models.CharField(max_length=255)
    state = models.CharField(
        _("state"), max_length=9, choices=State, default=State.WAITING, editable=False
    )
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    next_attempt_at = models.DateTimeField(_("next attempt"), null=True)
    sent_at = models.DateTimeField(_("sent"), null=True)
    error = models.TextField(_("error"), blank=True, default="")

    objects: ClassVar = NoticeQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        verbose_name = _("notice")
        verbose_name_plural = _("notices")
        constraints = (
            # The same thing is told once, however often it is noticed.
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
        """What it is about: the organization by our word for it, all else by its name."""
        named = self.subject_type != "organization"
        return str(self.subject_name) if named else localize_text(self.subject_name)
