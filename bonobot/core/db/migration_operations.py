"""Migrations and operations that don't block writers and don't take longer than they have to."""

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import groupby
from typing import Any

from django.contrib.contenttypes.management import RenameContentType
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import Migration
from django.db.migrations.operations import (
    AddIndex,
    AlterField,
    AlterModelTable,
    CreateModel,
    RenameField,
    RenameModel,
)
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models import F, Field, ForeignKey, Q


class BatchedMigration(Migration):
    """A migration that applies consecutive operations of one kind in a batch.

    Django builds the classes of all related models again after each operation, which takes most
    of the time of a migration. A batch changes the state for all its operations first and builds
    the classes once. Only operations that don't depend on the state between them are batched:
    new models, and models and fields that are renamed without their table or column.
    """

    def apply(
        self,
        project_state: ProjectState,
        schema_editor: BaseDatabaseSchemaEditor,
        collect_sql: bool = False,
    ) -> ProjectState:
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


class RenameFieldWithoutColumn(RenameField):
    """Rename a field in the code only: its column keeps its name.

    The indexes, constraints, and ordering of the model name the field, so their state changes, too.
    The model of the code names the column with `db_column`.
    """

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Name the column, and rename the field wherever the model's state names it."""
        model = state.models[app_label, self.model_name_lower]
        field = model.fields[self.old_name].clone()
        if field.db_column is None:
            suffix = "_id" if isinstance(field, ForeignKey) else ""
            field.db_column = f"{self.old_name}{suffix}"
        model.fields[self.old_name] = field
        for option in ("indexes", "constraints", "ordering"):
            if parts := model.options.get(option):
                model.options[option] = type(parts)(self._rename_in(part) for part in parts)
        super().state_forwards(app_label, state)

    def database_forwards(self, *_: Any) -> None:
        """Change nothing in the database."""

    def database_backwards(self, *_: Any) -> None:
        """Change nothing in the database."""

    def describe(self) -> str:
        return f"{super().describe()}, whose column keeps its name"

    def _rename_in(self, part: Any) -> Any:
        """Return a part of an index, constraint, or ordering with the new name of the field."""
        match part:
            case str():
                sign, name = ("-", part[1:]) if part.startswith("-") else ("", part)
                first, *lookups = name.split("__")
                return sign + "__".join((self._rename(first), *lookups))
            case Q():
                children = [self._rename_in(child) for child in part.children]
                return Q(*children, _connector=part.connector, _negated=part.negated)
            case F():
                return F(self._rename_in(part.name))  # type: ignore[attr-defined]
            case (str() as lookup, value):
                return self._rename_in(lookup), value
        if not hasattr(part, "deconstruct"):
            return part
        _path, arguments, options = part.deconstruct()
        for option in ("fields", "include", "condition"):
            match options.get(option):
                case Q() as condition:
                    options[option] = self._rename_in(condition)
                case [*names]:
                    options[option] = [self._rename_in(name) for name in names]
        return type(part)(*arguments, **options)

    def _rename(self, name: str) -> str:
        return self.new_name if name == self.old_name else name


class _RenameReverseRelation(AlterField):
    """Change the `related_name` of a relation."""

    def database_forwards(self, *_: Any) -> None:
        """Change nothing in the database."""


def rename_field(model: str, old: str, new: str) -> Operation:
    """Return an operation that renames a field in the code only: its column keeps its name."""
    return RenameFieldWithoutColumn(model.lower(), old, new)


def rename_reverse_relation(model: str, name: str, field: "Field[Any, Any]") -> Operation:
    """Return an operation that gives a relation another `related_name`, in the code only."""
    return _RenameReverseRelation(model.lower(), name, field)


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
        case (
            _NameTable()
            | _RenameModelWithoutTable()
            | RenameFieldWithoutColumn()
            | _RenameReverseRelation()
            | RenameContentType()
        ):
            return "rename"
    return ""


def _build_index_options(schema_editor: BaseDatabaseSchemaEditor) -> dict[str, Any]:
    """Return the options of PostgreSQL's schema editor; empty for other databases."""
    return {"concurrently": True} if schema_editor.connection.vendor == "postgresql" else {}
