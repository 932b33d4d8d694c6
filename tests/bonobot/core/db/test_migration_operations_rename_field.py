"""A field that is renamed only in code keeps its column, indexes and constraints."""

from typing import Any

from django.db import connection, migrations, models
from django.db.migrations import Migration
from django.db.migrations.state import ProjectState
from django.db.models import F, Q

from bonobot.core.db.migration_operations import BatchedMigration, rename_field
from bonobot.core.db.migration_operations import rename_reverse_relation as rename_relation

LABEL = "warehouse"
LARGE = Q(size__gt=9, depot__isnull=True) | ~Q(size__lt=F("limit"))
BOX = {
    "indexes": [models.Index(fields=["depot", "-size"], name="box_by_size")],
    "constraints": [
        models.UniqueConstraint(fields=["depot", "size"], name="box_once"),
        models.CheckConstraint(condition=LARGE, name="box_size"),
    ],
    "ordering": ("-size", "depot__name"),
}


def create_tables() -> list[Any]:
    depot = models.ForeignKey(f"{LABEL}.Depot", models.CASCADE, null=True, related_name="held")
    return [
        migrations.CreateModel("Depot", [("name", models.CharField(primary_key=True))]),
        migrations.CreateModel(
            "Box",
            [
                ("id", models.AutoField(primary_key=True)),
                ("size", models.IntegerField()),
                ("limit", models.IntegerField(default=0)),
                ("depot", depot),
            ],
            options=BOX,
        ),
    ]


RENAMES = [
    rename_field("Box", "size", "volume"),
    rename_field("Box", "depot", "store"),
    rename_relation(
        "Box",
        "store",
        models.ForeignKey(
            f"{LABEL}.Depot", models.CASCADE, null=True, related_name="+", db_column="depot_id"
        ),
    ),
]


def apply(
    base: type[Migration], operations: list[Any], state: ProjectState, *, back: bool = False
) -> ProjectState:
    migration = type("Migration", (base,), {"operations": operations})("0001_x", LABEL)
    with connection.schema_editor(atomic=True) as editor:
        return (migration.unapply if back else migration.apply)(state, editor)


def describe_table() -> tuple[list[str], list[str]]:
    with connection.cursor() as cursor:
        columns = connection.introspection.get_table_description(cursor, f"{LABEL}_box")
        constraints = connection.introspection.get_constraints(cursor, f"{LABEL}_box")
    return [column.name for column in columns], sorted(map(repr, constraints.items()))


def test_the_table_stays_and_the_state_has_the_new_names_when_fields_are_renamed(
    transactional_db: None,
) -> None:
    before = apply(Migration, create_tables(), ProjectState())
    table = describe_table()
    for base in (Migration, BatchedMigration):
        after = apply(base, RENAMES, before.clone())
        assert describe_table() == table
        box = after.models[LABEL, "box"]
        assert [(box.fields[name].db_column) for name in ("volume", "store")] == [
            "size",
            "depot_id",
        ]
        assert box.options["ordering"] == ("-volume", "store__name")
        [index], (unique, check) = box.options["indexes"], box.options["constraints"]
        assert index.fields == ["store", "-volume"]
        assert unique.fields == ("store", "volume")
        assert check.condition == Q(volume__gt=9, store__isnull=True) | ~Q(volume__lt=F("limit"))
        apply(base, RENAMES, before.clone(), back=True)
        assert describe_table() == table
    rows = after.apps.get_model(LABEL, "Box").objects
    rows.create(volume=10)
    assert rows.filter(volume__gt=9, store=None).count() == 1
    apply(Migration, create_tables(), ProjectState(), back=True)


def test_the_state_before_is_unchanged_when_a_field_is_renamed(transactional_db: None) -> None:
    before = apply(Migration, create_tables(), ProjectState())
    apply(Migration, RENAMES, before.clone())
    box = before.models[LABEL, "box"]
    assert box.fields["size"].db_column is None
    assert box.options["ordering"] == ("-size", "depot__name")
    apply(Migration, create_tables(), ProjectState(), back=True)
