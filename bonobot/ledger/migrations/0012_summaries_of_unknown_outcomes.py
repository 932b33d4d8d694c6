"""Count calls with an unknown outcome apart from failed ones.

Summaries counted both as failed, so they are summed again from the rollups, which have outcomes.
"""

from typing import Any

from django.db.migrations import Migration as DjangoMigration
from django.db.migrations.operations import AddField, RunPython
from django.db.models import BigIntegerField


def invalidate_summaries(apps: Any, schema_editor: Any) -> None:
    """Let the next count of usage sum all days again."""
    cursors = apps.get_model("ledger", "RollupCursor").objects
    cursors.using(schema_editor.connection.alias).update(summed_since=None)


class Migration(DjangoMigration):
    """Adds a column."""

    dependencies = [("ledger", "0011_drop_descending_indexes")]
    operations = [
        AddField("Summary", "unknown", BigIntegerField(default=0, db_default=0)),
        RunPython(invalidate_summaries, RunPython.noop, elidable=True),
    ]
