"""Handovers: a call that one process holds for a client, and another process goes on with."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.tenancy.scoped import OrganizationModel


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
