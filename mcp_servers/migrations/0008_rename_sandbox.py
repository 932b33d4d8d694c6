"""Rename the sandbox field in the code; its columns keep their names."""

from bonobot.core.db.migration_operations import BatchedMigration, rename_field


class Migration(BatchedMigration):
    """Renames a field of servers and presets."""

    dependencies = [("mcp_servers", "0007_session_state")]

    operations = [
        rename_field("Preset", "confinement", "sandbox"),
        rename_field("Server", "confinement", "sandbox"),
    ]
