"""Cells: what the writer charges, counts and holds beside the rows of the audit."""

from django.db import models
from django.db.models import Q


class BudgetCell(models.Model):
    """What one budget has spent and set aside in one period; `budgets` explains the key."""

    key = models.CharField(primary_key=True, max_length=255)
    organization_id = models.UUIDField(db_index=True)
    spent = models.BigIntegerField(default=0, db_default=0)
    reserved = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(spent__gte=0, reserved__gte=0), name="ledger_budgetcell_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.key}: {self.spent} spent, {self.reserved} reserved"


class FlowCell(models.Model):
    """The labels that a caller holds (bits), and when it last used them; see `flows`."""

    key = models.CharField(primary_key=True, max_length=255)
    organization_id = models.UUIDField(db_index=True)
    labels = models.BigIntegerField(default=0, db_default=0)
    touched = models.BigIntegerField(default=0, db_default=0)

    def __str__(self) -> str:
        return f"{self.key}: {self.labels}"


class StoreLabel(models.Model):
    """Labels that a store holds, and the call that brought them; see `flows`.

    `key` is that of the store's cell, which says what it holds now; a row is what it has of one
    call, until somebody clears it. `created` and `cleared` in microseconds since 1970.
    """

    id = models.UUIDField(primary_key=True)
    key = models.CharField(max_length=255)
    organization_id = models.UUIDField()
    labels = models.BigIntegerField()
    call_id = models.UUIDField()
    session_id = models.UUIDField(null=True)
    created = models.BigIntegerField()
    cleared = models.BigIntegerField(null=True)
    cleared_by = models.CharField(max_length=255, default="", db_default="")

    class Meta:
        indexes = [models.Index(fields=["key", "created"], name="ledger_storelabel_key")]

    def __str__(self) -> str:
        return f"{self.key}: {self.labels}"


class PermitRow(models.Model):
    """One call that a person allowed; see `permits`. Inserted by the rooms above, spent by the
    writer inside an admission, never changed otherwise. `expires` in microseconds since 1970."""

    id = models.UUIDField(primary_key=True)
    organization_id = models.UUIDField()
    digest = models.CharField(max_length=64)
    expires = models.BigIntegerField(db_index=True)
    spent_by = models.UUIDField(null=True)

    def __str__(self) -> str:
        return f"{self.id}: {'spent' if self.spent_by else 'open'}"


class RateCell(models.Model):
    """One rate limit's state: its theoretical arrival time in microseconds since 1970."""

    key = models.CharField(primary_key=True, max_length=255)
    tat = models.BigIntegerField(default=0, db_default=0)

    def __str__(self) -> str:
        return self.key
