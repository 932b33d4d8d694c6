"""Index the audit log by outcome in the order in which entries are added."""

from django.db.migrations import Migration as DjangoMigration
from django.db.models import Index

from bonobot.core.db.migration_operations import AddIndexOnline


class Migration(DjangoMigration):
    """Builds the index while others write."""

    atomic = False
    dependencies = [("ledger", "0009_audit_by_code")]
    operations = [
        AddIndexOnline(
            "AuditRow",
            Index(
                fields=["organization_id", "outcome", "opened_at"],
                name="ledger_audit_by_outcome",
            ),
        ),
    ]
