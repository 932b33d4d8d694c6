"""Index the audit log by server in the order in which entries are added."""

from django.db.migrations import Migration as DjangoMigration
from django.db.models import Index, Q

from bonobot.core.db.migration_operations import AddIndexOnline


class Migration(DjangoMigration):
    """Builds the index while others write."""

    atomic = False
    dependencies = [("ledger", "0005_audit_by_agent")]
    operations = [
        AddIndexOnline(
            "AuditRow",
            Index(
                fields=["organization_id", "server_id", "opened_at"],
                name="ledger_audit_by_server",
                condition=Q(server_id__isnull=False),
            ),
        ),
    ]
