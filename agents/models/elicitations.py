"""Model of elicitation requests (MCP)."""

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from agents.models.approvals import PersonRequest
from bonobot.core.crypto.encrypted_fields import SealedJSONField
from bonobot.core.db.fields import OrderedJSONField


class ElicitationRequest(PersonRequest):
    """An elicitation request of a server to the person who runs a session.

    A form's fields are in `schema`; `url` is shown in full and never fetched. All text is the
    server's. `content` is encrypted, and deleted once the server has received it. `pending_call` is
    null if the server waits on a live connection.
    """

    class Mode(models.TextChoices):
        """How the request is answered."""

        FORM = "form", _("form")
        URL = "url", _("web page")

    class State(models.TextChoices):
        """The state of a request; a person answers with accept, decline or cancel."""

        WAITING = "waiting", _("pending")
        ACCEPTED = "accept", _("answered")
        DECLINED = "decline", _("declined")
        CANCELLED = "cancel", _("dismissed")
        EXPIRED = "expired", _("expired")
        WITHDRAWN = "withdrawn", _("canceled")

    agent = models.ForeignKey(
        "agents.Agent", on_delete=models.CASCADE, related_name="elicitation_requests"
    )
    session = models.ForeignKey(
        "agents.Session", on_delete=models.CASCADE, related_name="elicitation_requests"
    )
    pending_call = models.ForeignKey(
        "agents.PendingCall",
        on_delete=models.CASCADE,
        null=True,
        related_name="elicitation_requests",
        db_column="exchange_id",
    )
    round = models.PositiveIntegerField(default=1)
    key = models.CharField(max_length=255, blank=True, default="")
    call_id = models.UUIDField(null=True)
    server_id = models.UUIDField()
    server_name = models.CharField(_("server"), max_length=255)
    own_name = models.CharField(_("tool"), max_length=2048, blank=True, default="")
    mode = models.CharField(_("mode"), max_length=4, choices=Mode)
    message = models.TextField(_("request"))
    schema = OrderedJSONField(default=dict)
    url = models.TextField(_("web page"), blank=True, default="")
    elicitation_id = models.CharField(max_length=255, blank=True, default="")
    flags = models.JSONField(_("warnings"), default=list)
    requested_by_kind = models.CharField(max_length=10)
    requested_by_id = models.CharField(max_length=255)
    requested_by = models.CharField(_("addressed to"), max_length=255)

    state = models.CharField(_("status"), max_length=9, choices=State, default=State.WAITING)
    content: Any = SealedJSONField(
        default=dict, blank=True, remembered=False, label="agents.question.content"
    )
    expires_at = models.DateTimeField(_("expires"))
    answered_at = models.DateTimeField(_("answered"), null=True)
    answered_by = models.CharField(_("answered by"), max_length=255, blank=True, default="")
    completed_at = models.DateTimeField(_("completed"), null=True)

    class Meta:
        db_table = "agents_question"
        ordering = ("-created_at",)
        verbose_name = _("elicitation request")
        verbose_name_plural = _("elicitation requests")
        constraints = (
            models.UniqueConstraint(
                fields=["pending_call", "round", "key"],
                condition=Q(pending_call__isnull=False),
                name="question_once",
            ),
        )
        indexes = (
            models.Index(fields=["organization", "state", "-created_at"], name="question_inbox"),
            models.Index(fields=["state", "expires_at"], name="question_by_expiry"),
        )

    def __str__(self) -> str:
        return f"{self.server_name}: {self.get_state_display()}"
