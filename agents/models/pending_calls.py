"""Models of pending calls, deferred calls and call handoffs between processes."""

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel
from bonobot.core.crypto.encrypted_fields import SealedJSONField


class PendingCall(OrganizationModel):
    """A pending call of a session: its server answered with a request for input, or a task.

    Any process can continue it (MCP 2026-07-28: multi round-trip requests; the tasks extension).
    `call_id` is the audit row of the last finished round trip, `call_ids` are those of all;
    `request_state` is the server's own and is sent back unchanged (null: it sent none). `responses`
    are encrypted, because they may contain a person's input.
    """

    class Kind(models.TextChoices):
        """The kind of the server's answer."""

        INPUT = "input", _("requests input")
        URL = "url", _("requests a web page visit")
        TASK = "task", _("runs a task")

    agent = models.ForeignKey("agents.Agent", on_delete=models.CASCADE, related_name="+")
    session = models.ForeignKey(
        "agents.Session", on_delete=models.CASCADE, related_name="pending_calls"
    )
    kind = models.CharField(max_length=5, choices=Kind)
    call_id = models.UUIDField(unique=True)
    call_ids = models.JSONField(default=list, db_column="legs")
    server_id = models.UUIDField()
    server_name = models.CharField(max_length=255)
    own_name = models.CharField(max_length=2048)
    method = models.CharField(max_length=32)
    round = models.PositiveIntegerField(default=1)
    requests = models.JSONField(default=dict)
    request_state = models.TextField(null=True)  # noqa: DJ001 - none isn't the same as an empty one
    responses: Any = SealedJSONField(
        default=dict, blank=True, remembered=False, label="agents.exchange.responses"
    )
    answered = models.JSONField(default=list)
    task_id = models.CharField(max_length=255, blank=True, default="")
    poll_ms = models.PositiveIntegerField(default=0)
    next_at = models.DateTimeField(null=True)
    ends_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "agents_exchange"
        ordering = ("created_at",)
        verbose_name = _("pending call")
        verbose_name_plural = _("pending calls")

    def __str__(self) -> str:
        return f"{self.own_name}: {self.kind} {self.round}"


class DeferredCall(OrganizationModel):
    """A deferred call of the gateway that runs after its approval (the tasks extension).

    Any process can run it. `request` and `answer` are encrypted, because they contain arguments and
    results. The process that runs it sends heartbeats; each claim increments `fence`, and writes
    with an older fence have no effect. `call_id` is the audit row of the current or last call.
    """

    class State(models.TextChoices):
        """The progress of a deferred call."""

        WAITING = "waiting", _("pending")
        READY = "ready", _("ready")
        RUNNING = "running", _("running")
        ASKING = "asking", _("waiting for input")
        REMOTE = "remote", _("running as a task")
        DONE = "done", _("completed")
        CANCELLED = "cancelled", _("canceled")

    approval = models.ForeignKey("agents.Approval", on_delete=models.CASCADE, related_name="+")
    request: Any = SealedJSONField(default=dict, remembered=False, label="agents.promise.request")
    answer: Any = SealedJSONField(
        default=dict, blank=True, remembered=False, label="agents.promise.answer"
    )
    state = models.CharField(max_length=9, choices=State, default=State.WAITING)
    visited = models.BooleanField(default=False)
    fence = models.PositiveIntegerField(default=0)
    call_id = models.UUIDField(null=True)
    heartbeat_at = models.DateTimeField(null=True, db_column="beaten_at")
    ends_at = models.DateTimeField()

    class Meta:
        db_table = "agents_promise"
        ordering = ("created_at",)
        verbose_name = _("deferred call")
        verbose_name_plural = _("deferred calls")
        indexes = (models.Index(fields=["ends_at"], name="promise_by_end"),)

    def __str__(self) -> str:
        return f"{self.approval_id}: {self.state}"


class CallHandoff(OrganizationModel):
    """A handoff of a call that waits in one process; its ID is the call's.

    Another process that received the client's answers stores them in `responses` and reads the
    result from `result`; both are encrypted. The holder updates `heartbeat_at`.
    """

    class State(models.TextChoices):
        """Which process has to act."""

        HELD = "held"
        ASKED = "asked"  # answers wait for the holder
        TAKEN = "taken"  # the holder continues with them
        ANSWERED = "answered"  # the result waits for the process that asked
        LEFT = "left"  # the process that asked is gone; the call has to end

    state = models.CharField(max_length=8, choices=State, default=State.HELD)
    responses = models.TextField(blank=True, default="", db_column="said")
    result = models.TextField(blank=True, default="", db_column="found")
    heartbeat_at = models.DateTimeField(db_column="beaten_at")

    class Meta:
        db_table = "agents_handover"
        verbose_name = _("call handoff")
        verbose_name_plural = _("call handoffs")

    def __str__(self) -> str:
        return f"{self.pk}: {self.state}"
