"""Models of budget, rate, flow and approval cells, and of rollups and summaries."""

from django.db import models
from django.db.models import Q

from bonobot.ledger.models.audit import AuditRow
from bonobot.ledger.usage.aggregation import BUCKET_COUNT


class Rollup(models.Model):
    """Totals of calls (or model turns) of one kind in one hour or day (UTC).

    There is also a column for each duration bucket, `took_0` and so on. Only
    `usage.build_rollups` writes; rollups are kept when audit rows are pruned.
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
    last_at = models.DateTimeField(null=True)  # null in rows from before 0.2

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
    """Totals of rollups by one dimension in one hour or day (UTC); see `usage.aggregation`.

    Only the columns of its dimension are set. There are also columns for the duration buckets of
    successful calls. Only `usage.build_rollups` writes.
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
    unknown = models.BigIntegerField(default=0, db_default=0)
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
            # The busiest subjects are read from this index alone.
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


TOOK = tuple(f"took_{number}" for number in range(BUCKET_COUNT))
for _model in (Rollup, Summary):
    for _name in TOOK:
        _model.add_to_class(_name, models.BigIntegerField(default=0, db_default=0))


class RollupCursor(models.Model):
    """How far an organization's audit log has been counted; see `usage.build_rollups`.

    `seq` is the last row that was read, `head` the end of the chain at that time. Rows opened
    before `since` are already in the rollups. Days from `summed_since` on are in the summaries as
    of version `summed_version`: if that isn't `version`, a worker of a release without summaries
    has counted since, and the summaries are invalid.
    """

    organization_id = models.UUIDField(primary_key=True)
    seq = models.BigIntegerField(default=0, db_default=0)
    head = models.BigIntegerField(default=0, db_default=0)
    since = models.DateTimeField(null=True)
    version = models.BigIntegerField(default=0, db_default=0)
    summed_version = models.BigIntegerField(default=-1, db_default=-1)
    summed_since = models.DateTimeField(null=True)

    class Meta:
        db_table = "ledger_counted"

    def __str__(self) -> str:
        return f"{self.organization_id} up to {self.seq}"


class UncountedEntry(models.Model):
    """An audit row that was read before it was closed: a running call, or a refusal that may be
    repeated (`refused`: counted once, its repeats follow when its window ends)."""

    id = models.UUIDField(primary_key=True)
    organization_id = models.UUIDField()
    seq = models.BigIntegerField()
    opened_at = models.DateTimeField()
    refused = models.BooleanField(default=False, db_default=False)

    class Meta:
        db_table = "ledger_uncounted"
        indexes = [models.Index(fields=["organization_id", "seq"], name="ledger_uncounted_seq")]

    def __str__(self) -> str:
        return f"{self.id} at {self.seq}"


class BudgetCell(models.Model):
    """The amounts spent and reserved of one budget in one period; see `budgets` for the key."""

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
    """The labels (bits) of a caller, a store or a text, and their last use; see `admission`."""

    key = models.CharField(primary_key=True, max_length=255)
    organization_id = models.UUIDField(db_index=True)
    labels = models.BigIntegerField(default=0, db_default=0)
    touched = models.BigIntegerField(default=0, db_default=0)

    def __str__(self) -> str:
        return f"{self.key}: {self.labels}"


class StoreLabel(models.Model):
    """Labels of a store, and the call that added them; see `admission`.

    `key` is the key of the store's cell, which has its current labels; a row has those added by one
    call, until they are cleared. `created` and `cleared` are in microseconds since 1970.
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


class ApprovalCell(models.Model):
    """A one-time approval of a call; see `admission`. The writer marks it as used within an
    admission; it is never changed otherwise. `expires` is in microseconds since 1970."""

    id = models.UUIDField(primary_key=True)
    organization_id = models.UUIDField()
    digest = models.CharField(max_length=64)
    expires = models.BigIntegerField(db_index=True)
    spent_by = models.UUIDField(null=True)

    class Meta:
        db_table = "ledger_permitrow"

    def __str__(self) -> str:
        return f"{self.id}: {'spent' if self.spent_by else 'open'}"


class RateCell(models.Model):
    """The state of a rate limit: its theoretical arrival time in microseconds since 1970."""

    key = models.CharField(primary_key=True, max_length=255)
    tat = models.BigIntegerField(default=0, db_default=0)

    def __str__(self) -> str:
        return self.key
