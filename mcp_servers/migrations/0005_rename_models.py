"""Rename models; the tables keep their names."""

from bonobot.core.db.migration_operations import BatchedMigration, rename_model


class Migration(BatchedMigration):
    """Renames 6 models."""

    dependencies = [("mcp_servers", "0004_env_exceptions")]

    operations = [
        *rename_model("Round", "BulkJob", table="mcp_servers_round"),
        *rename_model("Stop", "BulkJobItem", table="mcp_servers_stop"),
        *rename_model("Followed", "ResourceSubscription", table="mcp_servers_followed"),
        *rename_model("Watch", "ChangeSubscription", table="mcp_servers_watch"),
        *rename_model("Check", "HealthCheck", table="mcp_servers_check"),
        *rename_model("Unasked", "UnmonitoredPeriod", table="mcp_servers_unasked"),
    ]
