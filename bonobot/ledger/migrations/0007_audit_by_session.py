"""Index the audit log by session in the order in which entries are added."""

from django.db.migrations import Migration as DjangoMigration
from django.db.models import Index, Q

from bonobot.core.db.migration_operations import AddIndexOnline


class Migration(DjangoMigration):
    """Builds the index while others write."""

    atomic = False
    dependencies = [("ledger", "0006_audit_by_server")]
    operations = [
        AddIndexOnline(
            "AuditRow",
            Index(
                fields=["organization_id", "session_id", "opened_at"],
                name="ledger_audit_by_session",
                condition=Q(session_id__isnull=False),
            ),
        ),
    ]
