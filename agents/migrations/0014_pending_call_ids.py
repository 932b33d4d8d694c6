"""Rename a field in the code; its column keeps its name."""

from bonobot.core.db.migration_operations import BatchedMigration, rename_field


class Migration(BatchedMigration):
    dependencies = [("agents", "0013_access_request_withdrawn")]

    operations = [rename_field("PendingCall", "legs", "call_ids")]
