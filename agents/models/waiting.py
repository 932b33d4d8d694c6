"""Waiting: what every question to a person has in common, whoever asks it."""

from datetime import datetime
from typing import Any, ClassVar

from django.db.models import DateTimeField
from django.utils import timezone

from agents.models.reach import of_readable_sessions
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.scoped import OrganizationModel, ScopedQuerySet

# The state of a question that nobody has answered, and of one whose time was over before.
WAITING = "waiting"
EXPIRED = "expired"


class WaitingQuerySet(ScopedQuerySet):
    """Questions to people as inboxes and sweeps want them."""

    def waiting(self) -> "WaitingQuerySet":
        """Keep those that a person can still answer."""
        return self.filter(state=WAITING, expires_at__gt=timezone.now())

    def overdue(self) -> "WaitingQuerySet":
        """Keep those that nobody answered in time."""
        return self.filter(state=WAITING, expires_at__lte=timezone.now())

    def visible_to(self, principal: Principal) -> "WaitingQuerySet":
        """Keep those that a principal may read: all for readers, for members their own."""
        mine: WaitingQuerySet = of_readable_sessions(self, principal, "requested_by")
        return mine


class WaitsForPerson(OrganizationModel):
    """A question to a person: `waiting` until it is answered, taken back, or its time is over."""

    state: Any
    expires_at: "DateTimeField[Any, datetime]"

    objects: ClassVar = WaitingQuerySet.as_manager()

    class Meta:
        abstract = True

    def answerable(self, now: datetime) -> bool:
        """Tell whether a person can still answer."""
        return bool(self.state == WAITING and self.expires_at > now)

    def state_at(self, now: datetime) -> str:
        """Return the state; one that is overdue is expired, whether or not it was swept."""
        overdue = self.state == WAITING and not self.answerable(now)
        return EXPIRED if overdue else str(self.state)
