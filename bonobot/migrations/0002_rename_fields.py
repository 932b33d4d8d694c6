"""Rename fields in the code; their columns keep their names."""

from bonobot.core.db.migration_operations import BatchedMigration, rename_field


class Migration(BatchedMigration):
    """Renames a field."""

    dependencies = [("bonobot", "0001_initial")]

    operations = [
        rename_field("Lease", "until", "expires_at"),
    ]
