"""Migration operations that don't block writers."""

from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import AddIndex, AlterModelTable, RenameModel
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState


class AddIndexOnline(AddIndex):
    """Add an index without blocking writers: PostgreSQL builds it `CONCURRENTLY`.

    For tables that grow without bound. The migration must set `atomic = False` and contain no
    other operation: a failed build isn't rolled back but leaves an invalid index to drop manually.
    SQLite builds the index as usual.
    """

    atomic = False

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            schema_editor.add_index(model, self.index, **_build_index_options(schema_editor))

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model = from_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            schema_editor.remove_index(model, self.index, **_build_index_options(schema_editor))

    def describe(self) -> str:
        return f"{super().describe()}, while others write"


def rename_model(old: str, new: str, *, table: str) -> list[Operation]:
    """Return operations that rename a model in the code only: its `table` keeps its name."""
    return [AlterModelTable(old.lower(), table), RenameModel(old, new)]


def _build_index_options(schema_editor: BaseDatabaseSchemaEditor) -> dict[str, Any]:
    """Return the options of PostgreSQL's schema editor; empty for other databases."""
    return {"concurrently": True} if schema_editor.connection.vendor == "postgresql" else {}
