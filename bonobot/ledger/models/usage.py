"""Budget, rate, flow and approval cells; rollups and summaries."""

from django.db import models
from django.db.models import Q

from bonobot.ledger.models.audit import AuditRow
from bonobot.ledger.usage.aggregation import BUCKETS


class Rollup(models.Model):
    """What calls (or model turns) of one kind came to in one hour or day (UTC); see `rollups`.

    Beside the columns here there is one for each bucket of durations, `took_0` and on. Only
    `counting` writes; what old audit rows came to stays when they leave.
    """

    class Grain(models.TextChoices):
        HOUR = "hour"
        DAY = "day"

    key = models.CharField(primary_key=True, max_length=32)
    organization_id = models.UUIDField()
    grain = models.CharField(max_length=4, choices=Grain)
    begins = models.DateTimeField()
    event_type = models.CharField(max_length=64)
    outcome = models.CharField(max_length=16, choices=AuditRow.Outcome)
    code = models.CharField(max_length=64)
    rule = models.CharField(max_length=255)
    agent_id = models.UUIDField(null=True)
    agent_name = models.CharField(max_length=255)
    server_id = models.UUIDField(null=True)
    server_name = models.CharField(max_length=255)
    tool_name = models.CharField(max_length=255)
    model = models.CharField(max_length=255)
    calls = models.BigIntegerField()
    duration_ms = models.BigIntegerField()
    input_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()
    cost_microusd = models.BigIntegerField()
    last_at = models.DateTimeField(null=True)  # unknown in rows of before 0.2

    class Meta:
        indexes = [
            models.Index(fields=["organization_id", "grain", "begins"], name="ledger_rollup_time"),
            models.Index(
                fields=["organization_id", "agent_id", "grain", "begins"],
                name="ledger_rollup_agent",
            ),
            models.Index(
                fields=["organization_id", "server_id", "grain", "begins"],
                name="ledger_rollup_server",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.grain} {self.begins}: {self.calls} {self.outcome}"


class Summary(models.Model):
    """What rollups come to by one dimension in one hour or day (UTC); see `dimensions`.

    Only the columns of its dimension say something. Beside the columns here there are those of
    durations, as rollups have them, of calls that went well. Only `usage.build_rollups` writes.
    """

    organization_id = models.UUIDField()
    dimension = models.CharField(max_length=8)
    grain = models.CharField(max_length=4, choices=Rollup.Grain)
    begins = models.DateTimeField()
    subject = models.UUIDField()
    event_type = models.CharField(max_length=64)
    code = models.CharField(max_length=64)
    rule = models.CharField(max_length=255)
    agent_id = models.UUIDField(null=True)
    agent_name = models.CharField(max_length=255)
    server_id = models.UUIDField(null=True)
    server_name = models.CharField(max_length=255)
    tool_name = models.CharField(max_length=255)
    model = models.CharField(max_length=255)
    calls = models.BigIntegerField()
    ok = models.BigIntegerField()
    errors = models.BigIntegerField()
    refused = models.BigIntegerField()
    turns = models.BigIntegerField()
    input_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()
    cost_microusd = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organization_id", "dimension", "grain", "subject", "begins"],
                name="ledger_summary_once",
            ),
        ]
        indexes = [
            # Whose are the most is read from this alone; of one step from its end.
            models.Index(
                fields=[
                    *("organization_id", "dimension", "grain", "begins"),
                    *("calls", "turns", "subject"),
                ],
                name="ledger_summary_busiest",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.grain} {self.begins} by {self.dimension}: {self.calls}"


TOOK = tuple(f"took_{number}" for number in range(BUCKETS))
for _model in (Rollup, Summary):
    for _name in TOOK:
        _model.add_to_class(_name, models.BigIntegerField(default=0, db_default=0))


class Counted(models.Model):
    """How far an organization's audit has been counted; see `counting`.

    `seq` is the last row that was looked at, `head` the end of the chain then. Rows that were
    opened before `since` are in the rollups already. The days from `summed_since` on are in the
    summaries as they were at version `summed_version`: where that is another one, a worker of a
    release without summaries has counted since, and none of them can be relied on.
    """

    organization_id = models.UUIDField(primary_key=True)
    seq = models.BigIntegerField(default=0, db_default=0)
    head = models.BigIntegerField(default=0, db_default=0)
    since = models.DateTimeField(null=True)
    version = models.BigIntegerField(default=0, db_default=0)
    summed_version = models.BigIntegerField(default=-1, db_default=-1)
    summed_since = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.organization_id} up to {self.seq}"


class Uncounted(models.Model):
    """A row of the audit that was looked at before its end: a call that ran, or the first refusal
    of what may be a flood (`refused`: counted once, its repeats come when its window ends)."""

    id = models.UUIDField(primary_key=True)
    organization_id = models.UUIDField()
    seq = models.BigIntegerField()
    opened_at = models.DateTimeField()
    refused = models.BooleanField(default=False, db_default=False)

    class Meta:
        indexes = [models.Index(fields=["organization_id", "seq"], name="ledger_uncounted_seq")]

    def __str__(self) -> str:
        return f"{self.id} at {self.seq}"


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
