"""Models of the audit log: heads, rows, checkpoints and verifications of chains."""

from collections.abc import Iterable
from typing import Any, ClassVar, Never
from uuid import UUID

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from bonobot.core.problems import Problem
from bonobot.ledger.audit.genesis import GENESIS


class AppendOnly(Problem):
    """Audit rows can't be changed or deleted through the ORM."""

    code = "append_only"
    status = 405
    title = "Audit log can't be changed"


def _raise_append_only() -> Never:
    raise AppendOnly(
        "Audit entries can't be changed or deleted.",
        remedy="To delete old entries, run `bonobot audit prune`, which keeps the hash chain "
        "verifiable.",
    )


class Head(models.Model):
    """The end of an organization's chain, and the organization's policy generation.

    Its row lock is the lock of the chain. Changes of policies, tokens, servers or approved
    definitions increment the generation; admissions decided under an older one are refused.
    """

    organization_id = models.UUIDField(primary_key=True)
    seq = models.BigIntegerField(default=0, db_default=0)
    digest = models.CharField(max_length=64, default=GENESIS, db_default=GENESIS)
    generation = models.BigIntegerField(default=0, db_default=0)

    def __str__(self) -> str:
        return f"{self.organization_id} at {self.seq}"


class AuditQuerySet(models.QuerySet["AuditRow"]):
    """Read-only queryset of audit rows; writing methods raise `AppendOnly`."""

    def for_organization(self, organization_id: UUID) -> "AuditQuerySet":
        """Return the rows of one organization, latest first."""
        return self.filter(organization_id=organization_id).order_by("-opened_at", "-seq")

    def running(self) -> "AuditQuerySet":
        """Return the admitted calls without an outcome."""
        return self.filter(outcome=AuditRow.Outcome.OPEN)

    def update(self, **kwargs: Any) -> Never:
        """Raise `AppendOnly`."""
        _raise_append_only()

    def delete(self) -> Never:
        """Raise `AppendOnly`."""
        _raise_append_only()

    def bulk_create(self, objs: Iterable["AuditRow"], *args: Any, **kwargs: Any) -> Never:
        """Raise `AppendOnly`."""
        _raise_append_only()

    def bulk_update(self, objs: Iterable["AuditRow"], *args: Any, **kwargs: Any) -> Never:
        """Raise `AppendOnly`."""
        _raise_append_only()


class AuditRow(models.Model):
    """A call or an event, with an entry when it was requested and another when it ended.

    `opened` and `closed` are the texts of the entries; each has a position and a digest in the
    organization's chain. Refusals and administrative events have one entry; a refusal repeated
    within a minute is closed with its `repeats`. The other columns are copied from the texts for
    searching, and checked by verification.
    """

    class Decision(models.TextChoices):
        ALLOW = "allow", _("Allow")
        DENY = "deny", _("Deny")
        ASK = "ask", _("Ask")

    class Outcome(models.TextChoices):
        OPEN = "open", _("Running")
        OK = "ok", _("Succeeded")
        ERROR = "error", _("Failed")
        REFUSED = "refused", _("Denied")
        UNKNOWN = "unknown", _("Unknown")
        CANCELLED = "cancelled", _("Canceled")

    id = models.UUIDField(primary_key=True)
    organization_id = models.UUIDField()

    seq = models.BigIntegerField()
    digest = models.CharField(max_length=64)
    opened = models.TextField()
    opened_at = models.DateTimeField()
    closed_seq = models.BigIntegerField(null=True)
    closed_digest = models.CharField(max_length=64, default="", db_default="")
    closed = models.TextField(default="", db_default="")
    closed_at = models.DateTimeField(null=True)

    action = models.CharField(max_length=64)
    event_type = models.CharField(max_length=64)
    resource_type = models.CharField(max_length=64)
    resource_id = models.CharField(max_length=255)
    resource_name = models.CharField(max_length=255)
    actor_kind = models.CharField(max_length=16)
    actor_id = models.CharField(max_length=255)
    actor_label = models.CharField(max_length=255)
    decision = models.CharField(max_length=16, choices=Decision)
    rule = models.CharField(max_length=255)
    code = models.CharField(max_length=64)
    agent_id = models.UUIDField(null=True)
    agent_name = models.CharField(max_length=255)
    server_id = models.UUIDField(null=True)
    server_name = models.CharField(max_length=255)
    tool_name = models.CharField(max_length=255)
    session_id = models.UUIDField(null=True)
    parent_id = models.UUIDField(null=True)

    outcome = models.CharField(
        max_length=16, choices=Outcome, default=Outcome.OPEN, db_default=Outcome.OPEN
    )
    duration_ms = models.BigIntegerField(null=True)
    input_tokens = models.BigIntegerField(default=0, db_default=0)
    output_tokens = models.BigIntegerField(default=0, db_default=0)
    cost_microusd = models.BigIntegerField(default=0, db_default=0)
    repeats = models.BigIntegerField(default=0, db_default=0)

    objects: ClassVar[AuditQuerySet] = AuditQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        base_manager_name = "objects"  # all managers are read-only
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
        constraints = [
            models.UniqueConstraint(
                fields=["organization_id", "seq"], name="ledger_auditrow_one_chain"
            ),
        ]
        # In ascending order, in which entries are added: SQLite and PostgreSQL split the pages of a
        # descending index in the middle, and read either in both directions.
        indexes = [
            models.Index(fields=["organization_id", "opened_at"], name="ledger_audit_by_time"),
            models.Index(
                fields=["organization_id", "agent_id", "opened_at"],
                name="ledger_audit_by_agent",
                condition=Q(agent_id__isnull=False),
            ),
            models.Index(
                fields=["organization_id", "server_id", "opened_at"],
                name="ledger_audit_by_server",
                condition=Q(server_id__isnull=False),
            ),
            models.Index(
                fields=["organization_id", "session_id", "opened_at"],
                name="ledger_audit_by_session",
                condition=Q(session_id__isnull=False),
            ),
            models.Index(
                fields=["organization_id", "tool_name", "opened_at"], name="ledger_audit_by_tool"
            ),
            models.Index(
                fields=["organization_id", "code", "opened_at"], name="ledger_audit_by_code"
            ),
            models.Index(
                fields=["organization_id", "outcome", "opened_at"], name="ledger_audit_by_outcome"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.resource_type} {self.resource_id}: {self.outcome}"

    def save(self, *args: Any, **kwargs: Any) -> Never:
        """Raise `AppendOnly`."""
        _raise_append_only()

    def delete(self, *args: Any, **kwargs: Any) -> Never:
        """Raise `AppendOnly`."""
        _raise_append_only()


class Checkpoint(models.Model):
    """The signed start of a chain whose older rows were deleted; see `audit.prune_chain`."""

    id = models.UUIDField(primary_key=True)
    organization_id = models.UUIDField()
    seq = models.BigIntegerField()
    digest = models.CharField(max_length=64)
    statement = models.JSONField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organization_id", "seq"], name="ledger_checkpoint_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.organization_id} from {self.seq}"


class Verification(models.Model):
    """The signed progress of a chain's last verification; see `audit.verify_chain`."""

    organization_id = models.UUIDField(primary_key=True)
    statement = models.JSONField()

    def __str__(self) -> str:
        return f"verification of {self.organization_id}"
