"""Rename fields in the code; their columns keep their names."""

from bonobot.core.db.migration_operations import BatchedMigration, rename_field


class Migration(BatchedMigration):
    """Renames a field."""

    dependencies = [("notices", "0002_rename_models")]

    operations = [
        rename_field("NotificationChannel", "minimum", "minimum_severity"),
    ]
