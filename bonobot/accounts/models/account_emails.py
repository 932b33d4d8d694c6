"""AccountEmail: an email to a person that wasn't delivered yet."""

import uuid
from typing import ClassVar

from django.db import models
from django.utils import timezone


class AccountEmailQuerySet(models.QuerySet["AccountEmail"]):
    """Emails by the state of their delivery."""

    def due(self) -> "AccountEmailQuerySet":
        """Keep those whose next attempt is due."""
        return self.filter(next_attempt_at__lte=timezone.now())

    def undelivered(self) -> "AccountEmailQuerySet":
        """Keep those with a failed attempt; `given_up` are among them."""
        return self.exclude(error="")

    def given_up(self) -> "AccountEmailQuerySet":
        """Keep those that finally failed."""
        return self.filter(next_attempt_at=None)


class AccountEmail(models.Model):
    """A row of the outbox of emails to people; deleted as soon as it is sent.

    It has no text, link or token: they are built when it is sent. An empty `address` is the address
    of the account at that time, None in `next_attempt_at` an email that finally failed.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey("tenancy.User", on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=32)
    address = models.EmailField(blank=True, default="")
    values = models.JSONField(default=dict, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True, default=timezone.now, db_index=True)
    error = models.TextField(blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)

    objects: ClassVar = AccountEmailQuerySet.as_manager()

    class Meta:
        ordering = ("created_at",)

    def __str__(self) -> str:
        return f"{self.kind} to {self.user_id}"
