"""What a migration must not do while processes of the release before it still run.

An upgrade migrates first and replaces processes after that, so the old code reads and writes the
new schema for a while (docs/upgrade.md). A migration that must break a rule says in a `contracts`
attribute, in a sentence, why no process of the release before minds.
"""

from collections.abc import Iterator

from django.db import models
from django.db.migrations import Migration, operations
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from bonobot.core.db.migration_operations import AddIndexOnline, RenameFieldWithoutColumn

# The first migration of each app creates what no older process knows.
RULES_SINCE = {
    "agents": 1,
    "bonobot": 1,
    "ledger": 1,
    "mcp_servers": 1,
    "notices": 1,
    "tenancy": 1,
}
# Tables without a bound, whose indices are built while others write.
GROWING = {"auditrow", "step", "session", "rollup", "inbox", "storedresult"}


def number(name: str) -> int:
    """Return the place of a migration in its app."""
    return int(name.split("_", 1)[0])


def applies(migration: Migration) -> bool:
    """Say whether the rules hold for it: squashed ones are made from others."""
    since = RULES_SINCE.get(migration.app_label)
    return since is not None and not migration.replaces and number(migration.name) > since


def faults(migration: Migration, before: ProjectState) -> Iterator[str]:
    """Yield a sentence for each operation that old processes would mind."""
    if getattr(migration, "contracts", ""):
        return
    state, made = before.clone(), set[str]()
    for operation in migration.operations:
        if isinstance(operation, operations.CreateModel):
            made.add(operation.name.lower())
        elif fault := _fault(operation, state, migration.app_label, made):
            yield f"{operation.describe()}: {fault}"
        operation.state_forwards(migration.app_label, state)


def _fault(operation: Operation, state: ProjectState, app: str, made: set[str]) -> str:
    model = str(getattr(operation, "model_name", "") or getattr(operation, "name", "")).lower()
    if model in made or _keeps_table(operation, state, app):
        return ""
    match operation:
        case RenameFieldWithoutColumn():
            return ""
        case operations.AddField(field=field):
            return "" if _old_rows_can_be_written(field) else "needs null=True or a db_default"
        case operations.AlterField(field=field, name=name):
            return _describe_narrowing(state.models[app, model].fields[name], field)
        case (
            operations.RemoveField()
            | operations.DeleteModel()
            | operations.RenameField()
            | operations.RenameModel()
            | operations.AlterModelTable()
        ):
            return "the release before reads it; drop it a release after it was last read"
        case operations.AddConstraint():
            return "the release before may write what it refuses"
        case AddIndexOnline():
            return ""
        case operations.AddIndex() if model in GROWING:
            return "blocks writers of a table that grows; use AddIndexOnline"
        case operations.RunPython() | operations.RunSQL() if not operation.reversible:
            return "can't be taken back; give it a reverse, or noop"
    return ""


def _keeps_table(operation: Operation, state: ProjectState, app: str) -> bool:
    """Say whether a model is renamed in the code only: it names its table, which stays."""
    if isinstance(operation, operations.AlterModelTable):
        options = state.models[app, operation.name_lower].options
        return operation.table == options.get("db_table", f"{app}_{operation.name_lower}")
    return isinstance(operation, operations.RenameModel) and bool(
        state.models[app, operation.old_name_lower].options.get("db_table")
    )


def _old_rows_can_be_written(field: models.Field) -> bool:
    """Say whether an INSERT that doesn't name the column goes through."""
    return field.null or field.many_to_many or field.has_db_default()


def _describe_narrowing(old: models.Field, new: models.Field) -> str:
    if old.null and not new.null:
        return "the release before writes NULL"
    if new.max_length and (old.max_length or new.max_length) > new.max_length:
        return f"the release before writes up to {old.max_length} characters"
    return ""
