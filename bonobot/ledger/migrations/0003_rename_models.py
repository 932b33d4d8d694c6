"""Rename models; the tables keep their names."""

from bonobot.core.db.migration_operations import BatchedMigration, rename_model


class Migration(BatchedMigration):
    """Renames 3 models."""

    dependencies = [("ledger", "0002_store_labels")]

    operations = [
        *rename_model("PermitRow", "ApprovalCell", table="ledger_permitrow"),
        *rename_model("Counted", "RollupCursor", table="ledger_counted"),
        *rename_model("Uncounted", "UncountedEntry", table="ledger_uncounted"),
    ]
