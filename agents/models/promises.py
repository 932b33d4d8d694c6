"""Promise: a call that a person has to allow first, promised to a program as a task."""

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.lib.sealed import SealedJSONField
from bonobot.tenancy.scoped import OrganizationModel


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
