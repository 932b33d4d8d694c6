"""Models of sessions: steps, inbox, runners, stored results and files.

Only the holder of a session (runner and fence) appends steps; others add inbox rows and wake the
runner. Writes of a stale holder have no effect, because each write checks the fence.
"""

import re
import uuid
from typing import ClassVar

from django.db import models
from django.db.models import Exists, OuterRef
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from agents.models.agents import filter_readable_sessions
from agents.models.elicitations import ElicitationRequest
from agents.models.model_endpoints import ModelEndpoint
from bonobot.accounts.models.abstract_models import OrganizationModel, ScopedQuerySet
from bonobot.accounts.principals import Principal
from bonobot.ledger.actor_names import get_actor_name

# A tool and its arguments, which the offline model runs as they are; a title may be cut.
COMMAND = re.compile(r"/([\w.-]+)(?: ?\{.*[}…])?")


class Runner(models.Model):
    """A process that runs sessions; its heartbeat renews its lease on all of them."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    host = models.CharField(_("host"), max_length=255)
    pid = models.PositiveIntegerField()
    # Its `ProcessIdentity`: a process of the same machine can prove that it has ended.
    machine = models.CharField(max_length=128, blank=True, default="", db_default="")
    process_start = models.CharField(max_length=32, blank=True, default="", db_default="")
    started_at = models.DateTimeField(_("started"), auto_now_add=True)
    heartbeat_at = models.DateTimeField(_("last heartbeat"), db_index=True, db_column="beat_at")
    stopped_at = models.DateTimeField(_("stopped"), null=True)

    class Meta:
        ordering = ("-heartbeat_at",)
        verbose_name = _("session worker")
        verbose_name_plural = _("session workers")

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"


class SessionQuerySet(ScopedQuerySet):
    """Filters for sessions."""

    def unfinished(self) -> "SessionQuerySet":
        """Keep sessions that a runner should be running."""
        return self.filter(status__in=(Session.Status.QUEUED, Session.Status.RUNNING))

    def with_waits(self) -> "SessionQuerySet":
        """Load whether each session waits for an answer to a server, for `shown_status`."""
        requests = ElicitationRequest.objects.pending().filter(session=OuterRef("pk")).order_by()
        return self.annotate(waits_for_answer=Exists(requests))

    def visible_to(self, principal: Principal) -> "SessionQuerySet":
        """Keep sessions that a principal may read: all for readers, their own for members."""
        readable: SessionQuerySet = filter_readable_sessions(self, principal, "started_by")
        return readable


class Session(OrganizationModel):
    """A session with an agent; `done`, `failed` or `cancelled` until the next message."""

    class Status(models.TextChoices):
        """The status of a session."""

        QUEUED = "queued", _("queued")
        RUNNING = "running", _("running")
        WAITING = "waiting", _("waiting for a person")
        DONE = "done", _("completed")
        FAILED = "failed", _("failed")
        CANCELLED = "cancelled", _("canceled")

    agent = models.ForeignKey("agents.Agent", on_delete=models.CASCADE, related_name="sessions")
    title = models.CharField(_("title"), max_length=255, blank=True, default="")
    status = models.CharField(
        _("status"), max_length=10, choices=Status, default=Status.QUEUED, db_index=True
    )
    error_code = models.CharField(_("error code"), max_length=64, blank=True, default="")
    error_detail = models.TextField(_("error"), blank=True, default="")
    started_by_kind = models.CharField(max_length=10)
    started_by_id = models.CharField(max_length=255)
    started_by = models.CharField(_("started by"), max_length=255)
    # The token that started it, and that token's rate limit at that time.
    token_id = models.UUIDField(null=True)
    token_calls_per_minute = models.PositiveIntegerField(null=True)
    # The model endpoint chosen at the start; null: the agent's.
    model_endpoint = models.ForeignKey(
        "agents.ModelEndpoint",
        on_delete=models.SET_NULL,
        null=True,
        related_name="+",
        verbose_name=_("model endpoint"),
    )
    # For a session started by another one: its parent, the root of all, and the depth.
    parent = models.ForeignKey("self", on_delete=models.CASCADE, null=True, related_name="children")
    root_id = models.UUIDField(null=True)
    depth = models.PositiveSmallIntegerField(default=0)
    runner = models.ForeignKey(
        Runner, on_delete=models.SET_NULL, null=True, related_name="sessions"
    )
    fence = models.PositiveBigIntegerField(default=0)
    # How often in a row a worker died while it ran the session, without a finished turn or call in
    # between; `crash_progress` is the number of turns and calls at the last of these crashes.
    crashes = models.PositiveSmallIntegerField(default=0, db_default=0)
    crash_progress = models.PositiveBigIntegerField(default=0, db_default=0)
    quarantined_at = models.DateTimeField(_("quarantined"), null=True)
    turns = models.PositiveIntegerField(_("turns"), default=0)
    calls = models.PositiveIntegerField(_("calls"), default=0)
    input_tokens = models.PositiveBigIntegerField(_("input tokens"), default=0)
    output_tokens = models.PositiveBigIntegerField(_("output tokens"), default=0)
    # The part of the input that providers read from their caches.
    cached_tokens = models.PositiveBigIntegerField(_("cached tokens"), default=0, db_default=0)
    cost_microusd = models.PositiveBigIntegerField(_("cost (micro-dollars)"), default=0)
    working_dir = models.CharField(_("working folder"), max_length=1024, blank=True, default="")
    finished_at = models.DateTimeField(_("finished"), null=True)

    objects: ClassVar = SessionQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        verbose_name = _("session")
        verbose_name_plural = _("sessions")
        indexes = (models.Index(fields=["agent", "-created_at"], name="session_by_agent"),)

    def __str__(self) -> str:
        """Return its title; of a command that earlier releases stored as the title, the tool."""
        command = COMMAND.fullmatch(self.title)
        return (command[1] if command else self.title) or str(self.pk)

    @property
    def starter_name(self) -> str:
        """Who started it as screens name actors; interfaces return `started_by`."""
        return get_actor_name(self.started_by_kind, self.started_by_id, self.started_by)

    @cached_property
    def waits_for_answer(self) -> bool:
        """Whether a person must answer an elicitation request of a server, while its call runs.

        One query, or none for rows of `with_waits`.
        """
        return self.elicitation_requests.pending().exists()

    @property
    def shown_status(self) -> str:
        """The status on screens: one that waits for a person's answer isn't running."""
        is_unfinished = self.status in (self.Status.QUEUED, self.Status.RUNNING)
        return str(self.Status.WAITING if is_unfinished and self.waits_for_answer else self.status)

    @property
    def shown_status_text(self) -> str:
        return str(self.Status(self.shown_status).label)

    @property
    def effective_endpoint(self) -> ModelEndpoint:
        """Return the first endpoint of its turns: the chosen one, or the agent's."""
        endpoint: ModelEndpoint = self.model_endpoint or self.agent.model_endpoint
        return endpoint


class Step(models.Model):
    """One durable step of a session: saved before its effect and after it.

    `seq` numbers a session's steps (and is the SSE ID). A call is identified by (session, turn,
    index), never by the model's own call ID.
    """

    class Kind(models.TextChoices):
        """The kind of a step."""

        MESSAGE = "message", _("message")
        MODEL = "model", _("model turn")
        CALL = "call", _("call")
        NOTICE = "notice", _("event")
        END = "end", _("end")

    class State(models.TextChoices):
        """The intent, then the outcome."""

        INTENT = "intent", _("started")
        DONE = "done", _("completed")
        FAILED = "failed", _("failed")
        UNKNOWN = "unknown", _("unknown")

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="steps")
    seq = models.PositiveIntegerField()
    kind = models.CharField(max_length=10, choices=Kind)
    state = models.CharField(max_length=10, choices=State, default=State.INTENT)
    turn = models.PositiveIntegerField(default=0)
    index = models.PositiveIntegerField(default=0)
    call_id = models.UUIDField(null=True, db_index=True)
    payload = models.JSONField(default=dict)
    fence = models.PositiveBigIntegerField(default=0)
    started_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("session", "seq")
        verbose_name = _("step")
        verbose_name_plural = _("steps")
        constraints = (
            models.UniqueConstraint(fields=["session", "seq"], name="step_seq"),
            models.UniqueConstraint(
                fields=["session", "turn", "index"],
                condition=models.Q(kind="call"),
                name="step_call_once",
            ),
        )

    def __str__(self) -> str:
        return f"{self.seq} {self.kind} {self.state}"

    @property
    def author_name(self) -> str:
        """Who sent a message, as screens name actors; only the label is stored."""
        return get_actor_name("cli", "", self.payload.get("by", ""))


class Inbox(models.Model):
    """A request to a session: a message, or a cancellation."""

    class Kind(models.TextChoices):
        """The kind of request."""

        MESSAGE = "message", _("message")
        CANCEL = "cancel", _("cancel")

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="inbox")
    kind = models.CharField(max_length=10, choices=Kind)
    payload = models.JSONField(default=dict)
    actor_kind = models.CharField(max_length=10)
    actor_id = models.CharField(max_length=255)
    actor = models.CharField(max_length=255)
    created_at = models.DateTimeField(auto_now_add=True)
    processed_at = models.DateTimeField(null=True, db_column="taken_at")

    class Meta:
        ordering = ("pk",)
        verbose_name = _("inbox item")
        verbose_name_plural = _("inbox")
        indexes = (models.Index(fields=["session", "processed_at"], name="inbox_by_session"),)

    def __str__(self) -> str:
        return f"{self.kind} → {self.session_id}"


class StoredResult(OrganizationModel):
    """A full result; its ID is the call's ID. The model reads more with `read_result`."""

    agent = models.ForeignKey("agents.Agent", on_delete=models.CASCADE, null=True, related_name="+")
    session_id = models.UUIDField(null=True, db_index=True)
    text = models.TextField()

    class Meta:
        verbose_name = _("stored result")
        verbose_name_plural = _("stored results")

    def __str__(self) -> str:
        return str(self.pk)


class Blob(OrganizationModel):
    """An image or an attached text, stored once per organization by its digest."""

    sha256 = models.CharField(max_length=64)
    media_type = models.CharField(max_length=32)
    size = models.PositiveIntegerField()
    data = models.BinaryField()

    class Meta:
        verbose_name = _("stored file")
        verbose_name_plural = _("stored files")
        constraints = (
            models.UniqueConstraint(fields=["organization", "sha256"], name="blob_once"),
        )

    def __str__(self) -> str:
        return self.sha256
