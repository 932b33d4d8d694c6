"""Add indexes while running."""

from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import AddIndex
from django.db.migrations.state import ProjectState


class AddIndexOnline(AddIndex):
    """Add an index while others write: PostgreSQL builds it `CONCURRENTLY`.

    For tables that grow without bound. Its migration says `atomic = False` and holds nothing
    else: a build that fails can't be rolled back, it leaves an invalid index to drop by hand.
    SQLite has one writer at a time, whatever it does, and builds it as usual.
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


def _build_index_options(schema_editor: BaseDatabaseSchemaEditor) -> dict[str, Any]:
    """Return what PostgreSQL's editor, and no other, must be told."""
    return {"concurrently": True} if schema_editor.connection.vendor == "postgresql" else {}
