"""Migrations and operations that don't block writers and don't take longer than they have to."""

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import groupby
from typing import Any

from django.contrib.contenttypes.management import RenameContentType
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import Migration
from django.db.migrations.operations import AddIndex, AlterModelTable, CreateModel, RenameModel
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState


class BatchedMigration(Migration):
    """A migration that applies consecutive operations of one kind in a batch.

    Django builds the classes of all related models again after each operation, which takes most
    of the time of a migration. A batch changes the state for all its operations first and builds
    the classes once. Only operations that don't depend on the state between them are batched:
    new models, and models that are renamed without their table.
    """

    def apply(
        self,
        project_state: ProjectState,
        schema_editor: BaseDatabaseSchemaEditor,
        collect_sql: bool = False,
    ) -> ProjectState:
        """Apply the operations and return the changed state."""
        if collect_sql:
            return super().apply(project_state, schema_editor, collect_sql)
        for is_batch, operations in _split_into_batches(self.operations):
            if is_batch:
                self._apply_batch(operations, project_state, schema_editor)
            else:
                part = copy(self)
                part.operations = operations  # type: ignore[misc]  # each instance has its own
                project_state = super(BatchedMigration, part).apply(project_state, schema_editor)
        return project_state

    def _apply_batch(
        self,
        operations: Sequence[Operation],
        state: ProjectState,
        schema_editor: BaseDatabaseSchemaEditor,
    ) -> None:
        state.__dict__.pop("apps", None)  # built again when the first operation asks for it
        state.is_delayed = False  # by then all of it is up to date
        for operation in operations:
            operation.state_forwards(self.app_label, state)
        for operation in operations:
            operation.database_forwards(self.app_label, schema_editor, state, state)


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


class _NameTable(AlterModelTable):
    """Name the table that a model already has."""

    def database_forwards(self, *_: Any) -> None:
        """Change nothing in the database."""


class _RenameModelWithoutTable(RenameModel):
    """Rename a model that names its table; Django renames its content type, too."""

    def database_forwards(self, *_: Any) -> None:
        """Change nothing in the database."""


def rename_model(old: str, new: str, *, table: str) -> list[Operation]:
    """Return operations that rename a model in the code only: its `table` keeps its name."""
    return [_NameTable(old.lower(), table), _RenameModelWithoutTable(old, new)]


def _split_into_batches(operations: Sequence[Operation]) -> Iterator[tuple[bool, list[Operation]]]:
    """Yield consecutive operations of one kind, and whether they can be applied in a batch."""
    for kind, group in groupby(operations, _find_kind):
        yield bool(kind), list(group)


def _find_kind(operation: Operation) -> str:
    """Return the kind of an operation that can be batched; blank for all others."""
    match operation:
        case CreateModel():
            return "create"
        case _NameTable() | _RenameModelWithoutTable() | RenameContentType():
            return "rename"
    return ""


def _build_index_options(schema_editor: BaseDatabaseSchemaEditor) -> dict[str, Any]:
    """Return the options of PostgreSQL's schema editor; empty for other databases."""
    return {"concurrently": True} if schema_editor.connection.vendor == "postgresql" else {}
