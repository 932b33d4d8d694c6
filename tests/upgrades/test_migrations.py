"""Migrations leave processes of the release before alone."""

from typing import Any

import pytest
from django.db import connection, migrations, models
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ModelState, ProjectState

from bonobot.core.db.migration_operations import AddIndexOnline, rename_field
from tests.upgrades.rules import applies, faults


def migration_loader() -> MigrationLoader:
    return MigrationLoader(None, replace_migrations=False)


def test_old_processes_can_run_beside_each_new_migration() -> None:
    loader = migration_loader()
    found = {
        f"{label}.{name}": [*faults(migration, loader.project_state((label, name), at_end=False))]
        for (label, name), migration in loader.disk_migrations.items()
        if applies(migration)
    }
    assert {name: said for name, said in found.items() if said} == {}, (
        "make the migration safe, or set `contracts` in its class to the reason why it is"
    )


def state() -> ProjectState:
    """A table that grows, with a name of 20 characters and a note that may be missing."""
    fields: dict[str, models.Field[Any, Any]] = {
        "id": models.AutoField(primary_key=True),
        "name": models.CharField(max_length=20),
        "note": models.TextField(null=True),
    }
    made = ProjectState()
    made.add_model(ModelState("agents", "Step", fields))
    return made


def list_faults(*operations: Operation, contracts: str = "") -> list[str]:
    body = {"operations": operations, "contracts": contracts}
    made = type("Migration", (Migration,), body)("0099_x", "agents")
    return [*faults(made, state())]


INDEX = models.Index(fields=["name"], name="step_name")
BREAKING = {
    "a column that must be given": migrations.AddField("step", "n", models.IntegerField(default=0)),
    "a column removed": migrations.RemoveField("step", "note"),
    "a column renamed": migrations.RenameField("step", "note", "remark"),
    "a table removed": migrations.DeleteModel("Step"),
    "null no more": migrations.AlterField("step", "note", models.TextField(default="")),
    "shorter": migrations.AlterField("step", "name", models.CharField(max_length=10)),
    "refusing": migrations.AddConstraint(
        "step", models.UniqueConstraint(fields=["name"], name="step_one_name")
    ),
    "blocking": migrations.AddIndex("step", INDEX),
    "one way": migrations.RunPython(print),
}
KIND = {
    "a column with a default of the database": migrations.AddField(
        "step", "n", models.IntegerField(default=0, db_default=0)
    ),
    "a column that may be missing": migrations.AddField(
        "step", "n", models.IntegerField(null=True)
    ),
    "longer": migrations.AlterField("step", "name", models.CharField(max_length=30)),
    "an index built online": AddIndexOnline("step", INDEX),
    "both ways": migrations.RunPython(print, migrations.RunPython.noop),
    "a field renamed in the code only": rename_field("step", "note", "remark"),
    "a table": migrations.CreateModel("New", [("id", models.AutoField(primary_key=True))]),
}


@pytest.mark.parametrize("operation", BREAKING.values(), ids=BREAKING)
def test_what_old_processes_would_mind_is_a_fault_unless_it_is_explained(
    operation: Operation,
) -> None:
    assert len(list_faults(operation)) == 1
    assert list_faults(operation, contracts="Nothing has read it since 0.2.") == []


@pytest.mark.parametrize("operation", KIND.values(), ids=KIND)
def test_what_only_adds_is_none(operation: Operation) -> None:
    assert list_faults(operation) == []


def test_a_new_table_may_be_completed_in_its_own_migration() -> None:
    create = migrations.CreateModel("New", [("id", models.AutoField(primary_key=True))])
    field = migrations.AddField("new", "n", models.IntegerField(default=0))
    assert list_faults(create, field) == []


def test_a_model_may_be_renamed_when_its_table_keeps_its_name() -> None:
    keep = migrations.AlterModelTable("step", "agents_step")
    rename = migrations.RenameModel("Step", "Stage")
    assert list_faults(keep, rename) == []
    assert len(list_faults(rename)) == 1
    assert len(list_faults(migrations.AlterModelTable("step", "agents_stage"), rename)) == 1


@pytest.mark.django_db(transaction=True)
def test_an_index_is_built_beside_writers_and_taken_back() -> None:
    steps = MigrationLoader(None).project_state()
    operation = AddIndexOnline("step", models.Index(fields=["kind"], name="step_by_kind_try"))
    after = steps.clone()
    operation.state_forwards("agents", after)

    def indices() -> set[str]:
        with connection.cursor() as cursor:
            return set(connection.introspection.get_constraints(cursor, "agents_step"))

    with connection.schema_editor(atomic=False) as editor:
        operation.database_forwards("agents", editor, steps, after)
        assert "step_by_kind_try" in indices()
        operation.database_backwards("agents", editor, after, steps)
    assert "step_by_kind_try" not in indices()
