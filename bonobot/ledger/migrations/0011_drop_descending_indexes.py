"""Drop the indexes of the audit log in descending order, which others replaced."""

from django.db.migrations import Migration as DjangoMigration
from django.db.migrations.operations import RemoveIndex

REPLACED = ("time", "agent", "server", "session", "tool", "code", "outcome")


class Migration(DjangoMigration):
    """Drops 7 indexes."""

    dependencies = [("ledger", "0010_audit_by_outcome")]
    operations = [RemoveIndex("AuditRow", f"ledger_audit_{name}") for name in REPLACED]
