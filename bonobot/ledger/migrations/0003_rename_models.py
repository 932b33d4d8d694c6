"""Rename models; the tables keep their names."""

from django.db import migrations

from bonobot.core.db.migration_operations import rename_model


class Migration(migrations.Migration):
    """Renames 3 models."""

    dependencies = [("ledger", "0002_store_labels")]

    operations = [
        *rename_model("PermitRow", "ApprovalCell", table="ledger_permitrow"),
        *rename_model("Counted", "RollupCursor", table="ledger_counted"),
        *rename_model("Uncounted", "UncountedEntry", table="ledger_uncounted"),
    ]
