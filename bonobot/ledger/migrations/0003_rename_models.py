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
    """Renames 3 models."""

    dependencies = [("ledger", "0002_store_labels")]

    operations = [
        *rename("PermitRow", "ApprovalCell", "ledger_permitrow"),
        *rename("Counted", "RollupCursor", "ledger_counted"),
        *rename("Uncounted", "UncountedEntry", "ledger_uncounted"),
    ]
