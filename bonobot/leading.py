"""Leading: of several processes one does something, and another takes over when it is gone.

A lease is a row, claimed and renewed by a conditional UPDATE. Who can't renew it stops leading when
it has run out by its own clock, which is before anybody else may claim it: a host that is cut off
from the database and one that can reach it never lead together.
"""

import logging
from datetime import timedelta
from time import monotonic
from uuid import uuid4

from django.db import DatabaseError
from django.db.models import Q
from django.utils import timezone

from bonobot.models import Lease

logger = logging.getLogger(__name__)

LEASE_S = 15.0
RENEW_S = 5.0


class Leader:
    """This process's part in one lease."""

    def __init__(self, name: str) -> None:
        """Begin without it."""
        self.name = name
        self.holder = uuid4()
        self._until = 0.0
        self._look_at = 0.0

    @property
    def leads(self) -> bool:
        """Whether the lease is ours by our own clock."""
        return monotonic() < self._until

    def renew(self) -> bool:
        """Claim or renew the lease, at most each five seconds; return whether it is ours."""
        began = monotonic()
        if began >= self._look_at:
            self._look_at = began + RENEW_S
            try:
                self._until = began + LEASE_S if self._claimed() else 0.0
            except DatabaseError as error:
                logger.warning("The lease %r can't be renewed now: %s", self.name, error)
        return self.leads

    def let_go(self) -> None:
        """Let another one claim the lease at once."""
        self._until = 0.0
        Lease.objects.filter(name=self.name, holder=self.holder).delete()

    def _claimed(self) -> bool:
        now = timezone.now()
        until = now + timedelta(seconds=LEASE_S)
        free = Q(holder=self.holder) | Q(until__lt=now)
        if Lease.objects.filter(free, name=self.name).update(holder=self.holder, until=until):
            return True
        made = Lease(name=self.name, holder=self.holder, until=until)
        Lease.objects.bulk_create([made], ignore_conflicts=True)
        return Lease.objects.filter(name=self.name, holder=self.holder).exists()
