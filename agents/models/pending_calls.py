"""Exchange: a call that its server answered with a request, and how the call goes on.

Promise: a call that a person has to allow first, promised to a program as a task.

Handovers: a call that one process holds for a client, and another process goes on with.
"""

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel
from bonobot.core.crypto.encrypted_fields import SealedJSONField


class Exchange(OrganizationModel):
    """A call of a session that its server answered with a request for input, or with a task.

    Everything that going on needs is here, so that any process can (MCP 2026-07-28: multi
    round-trip requests; the tasks extension). `call_id` is the audit's row of the last leg that is
    over, `legs` are those of all; `request_state` is the server's own and is sent back as it came
    (null: it sent none). `responses` are sealed: they may hold what a person entered.
    """

    class Kind(models.TextChoices):
        """What the server answered with."""

        INPUT = "input", _("asks for input")
        URL = "url", _("asks for a visit to a web page")
        TASK = "task", _("works on a task")

    agent = models.ForeignKey("agents.Agent", on_delete=models.CASCADE, related_name="+")
    session = models.ForeignKey(
        "agents.Session", on_delete=models.CASCADE, related_name="exchanges"
    )
    kind = models.CharField(max_length=5, choices=Kind)
    call_id = models.UUIDField(unique=True)
    legs = models.JSONField(default=list)
    server_id = models.UUIDField()
    server_name = models.CharField(max_length=255)
    own_name = models.CharField(max_length=2048)
    method = models.CharField(max_length=32)
    round = models.PositiveIntegerField(default=1)
    requests = models.JSONField(default=dict)
    request_state = models.TextField(null=True)  # noqa: DJ001 - none isn't the same as an empty one
    responses: Any = SealedJSONField(default=dict, blank=True, remembered=False)
    answered = models.JSONField(default=list)
    task_id = models.CharField(max_length=255, blank=True, default="")
    poll_ms = models.PositiveIntegerField(default=0)
    next_at = models.DateTimeField(null=True)
    ends_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("created_at",)
        verbose_name = _("call in several parts")
        verbose_name_plural = _("calls in several parts")

    def __str__(self) -> str:
        return f"{self.own_name}: {self.kind} {self.round}"


class Promise(OrganizationModel):
    """A call of the gateway that is made once a person has allowed it (the tasks extension).

    Everything that making it needs is here, so that any process can. `request` and `answer` are
    sealed: they hold arguments and results. While it runs, a process beats; `fence` is raised by
    each that takes it, and one with an older number changes nothing. `call_id` is the audit's row
    of the call that is made, or was last.
    """

    class State(models.TextChoices):
        """How far it is."""

        WAITING = "waiting", _("waits for a person")
        READY = "ready", _("is about to be made")
        RUNNING = "running", _("is being made")
        ASKING = "asking", _("its server asks for something")
        REMOTE = "remote", _("its server works on a task")
        DONE = "done", _("is over")
        CANCELLED = "cancelled", _("was taken back")

    approval = models.ForeignKey("agents.Approval", on_delete=models.CASCADE, related_name="+")
    request: Any = SealedJSONField(default=dict, remembered=False)
    answer: Any = SealedJSONField(default=dict, blank=True, remembered=False)
    state = models.CharField(max_length=9, choices=State, default=State.WAITING)
    visited = models.BooleanField(default=False)
    fence = models.PositiveIntegerField(default=0)
    call_id = models.UUIDField(null=True)
    beaten_at = models.DateTimeField(null=True)
    ends_at = models.DateTimeField()

    class Meta:
        ordering = ("created_at",)
        verbose_name = _("promised call")
        verbose_name_plural = _("promised calls")
        indexes = (models.Index(fields=["ends_at"], name="promise_by_end"),)

    def __str__(self) -> str:
        return f"{self.approval_id}: {self.state}"


class Handover(OrganizationModel):
    """A call that waits in one process; its id is the held call's.

    Another process that got the client's answers leaves them in `said`, and finds what came of
    them in `found`; both are sealed texts. The holder writes `beaten_at` for as long as it holds.
    """

    class State(models.TextChoices):
        """Whose turn it is."""

        HELD = "held"
        ASKED = "asked"  # answers wait for the holder
        TAKEN = "taken"  # the holder goes on with them
        ANSWERED = "answered"  # what came of them waits for who asked
        LEFT = "left"  # who asked is gone, and the call is to end

    state = models.CharField(max_length=8, choices=State, default=State.HELD)
    said = models.TextField(blank=True, default="")
    found = models.TextField(blank=True, default="")
    beaten_at = models.DateTimeField()

    class Meta:
        verbose_name = _("handover")
        verbose_name_plural = _("handovers")

    def __str__(self) -> str:
        return f"{self.pk}: {self.state}"
