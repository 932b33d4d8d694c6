"""Index the audit log by tool in the order in which entries are added."""

from django.db.migrations import Migration as DjangoMigration
from django.db.models import Index

from bonobot.core.db.migration_operations import AddIndexOnline


class Migration(DjangoMigration):
    """Builds the index while others write."""

    atomic = False
    dependencies = [("ledger", "0007_audit_by_session")]
    operations = [
        AddIndexOnline(
            "AuditRow",
            Index(
                fields=["organization_id", "tool_name", "opened_at"],
                name="ledger_audit_by_tool",
            ),
        ),
    ]
