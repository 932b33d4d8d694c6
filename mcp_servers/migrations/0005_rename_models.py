"""Rename models; the tables keep their names."""

from django.db import migrations
from django.db.migrations.operations.base import Operation


def rename(old: str, new: str, table: str) -> list[Operation]:
    """Rename a model in the state only: its table keeps its name."""
    return [
        migrations.AlterModelTable(name=old.lower(), table=table),
        migrations.RenameModel(old_name=old, new_name=new),
    ]


class Migration(migrations.Migration):
    """Renames 6 models."""

    dependencies = [("mcp_servers", "0004_env_exceptions")]

    operations = [
        *rename("Round", "BulkJob", "mcp_servers_round"),
        *rename("Stop", "BulkJobItem", "mcp_servers_stop"),
        *rename("Followed", "ResourceSubscription", "mcp_servers_followed"),
        *rename("Watch", "ChangeSubscription", "mcp_servers_watch"),
        *rename("Check", "HealthCheck", "mcp_servers_check"),
        *rename("Unasked", "UnmonitoredPeriod", "mcp_servers_unasked"),
    ]
