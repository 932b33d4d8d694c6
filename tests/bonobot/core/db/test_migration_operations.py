"""Batched migrations have the same result as Django's, in both directions, with less work."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.contenttypes.management import RenameContentType
from django.contrib.contenttypes.models import ContentType
from django.db import connection, migrations, models
from django.db.migrations import Migration
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ModelState, ProjectState

from bonobot.core.db.migration_operations import BatchedMigration, rename_model

LABEL = "library"
SHELVES = 5


def _create_model(name: str, **fields: "models.Field[Any, Any]") -> Operation:
    key = models.AutoField(primary_key=True)
    return migrations.CreateModel(name, [("id", key), *fields.items()])


def _build_foreign_key(name: str, **options: Any) -> "models.ForeignKey[Any, Any]":
    return models.ForeignKey(f"{LABEL}.{name}", models.CASCADE, **options)


def build_operations() -> list[Operation]:
    """Models that refer to each other, an added field, and a renamed model."""
    shelves = [
        _create_model(f"Shelf{number}", hall=_build_foreign_key("Hall"))
        for number in range(SHELVES)
    ]
    return [
        _create_model("Hall", title=models.CharField(max_length=9, unique=True)),
        _create_model(
            "Book", hall=_build_foreign_key("Hall"), others=models.ManyToManyField(f"{LABEL}.Book")
        ),
        migrations.AddField(
            "Hall", "first", _build_foreign_key("Book", null=True, related_name="+")
        ),
        *shelves,
        *rename_model("Book", "Volume", table=f"{LABEL}_book"),
        RenameContentType(LABEL, "book", "volume"),
        migrations.AddField("Volume", "pages", models.IntegerField(null=True)),
    ]


def build_migration(base: type[Migration]) -> Migration:
    return type("Migration", (base,), {"operations": build_operations()})("0001_initial", LABEL)


def build_state() -> ProjectState:
    state = ProjectState()
    state.add_model(ModelState.from_model(ContentType))
    return state


def describe_tables() -> dict[str, Any]:
    """Return the columns and constraints of the tables, without the names of the constraints."""
    inspected, described = connection.introspection, {}
    with connection.cursor() as cursor:
        for table in inspected.table_names(cursor):
            if table.startswith(LABEL):
                columns = [
                    (column.name, column.type_code, column.null_ok)
                    for column in inspected.get_table_description(cursor, table)
                ]
                constraints = inspected.get_constraints(cursor, table).values()
                described[table] = sorted(columns), sorted(map(repr, constraints))
    return described


def apply_and_revert(base: type[Migration]) -> tuple[ProjectState, dict[str, Any], dict[str, Any]]:
    """Return the state, the tables, and the tables that remain after the migration is reverted."""
    migration = build_migration(base)
    with connection.schema_editor(atomic=True) as editor:
        state = migration.apply(build_state(), editor)
    after = describe_tables()
    with connection.schema_editor(atomic=True) as editor:
        migration.unapply(build_state(), editor)
    return state, after, describe_tables()


@pytest.fixture
def content_type(transactional_db: None) -> Iterator[ContentType]:
    """The content type of the model that is renamed."""
    row = ContentType.objects.create(app_label=LABEL, model="book")
    yield row
    row.delete()


def test_a_batched_migration_has_the_same_result_as_a_plain_one(content_type: ContentType) -> None:
    state, after, remaining = apply_and_revert(BatchedMigration)
    expected_state, expected, expected_remaining = apply_and_revert(Migration)
    assert state == expected_state
    assert after == expected
    assert len(expected) == SHELVES + 3
    assert remaining == expected_remaining == {}


def test_a_renamed_model_keeps_its_content_type(content_type: ContentType) -> None:
    migration = build_migration(BatchedMigration)
    with connection.schema_editor(atomic=True) as editor:
        migration.apply(build_state(), editor)
    content_type.refresh_from_db()
    assert content_type.model == "volume"
    with connection.schema_editor(atomic=True) as editor:
        migration.unapply(build_state(), editor)
    content_type.refresh_from_db()
    assert content_type.model == "book"


def test_a_batch_builds_the_classes_of_its_models_once(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[str] = []
    render = ModelState.render

    def record_render(state: ModelState, apps: Any) -> Any:
        rendered.append(state.name)
        return render(state, apps)

    monkeypatch.setattr(ModelState, "render", record_render)
    counts = {}
    for base in (BatchedMigration, Migration):
        with connection.schema_editor(atomic=True) as editor:
            build_migration(base).apply(build_state(), editor)
        counts[base] = len(rendered)
        with connection.schema_editor(atomic=True) as editor:
            build_migration(base).unapply(build_state(), editor)
        rendered.clear()
    assert counts[BatchedMigration] < counts[Migration] / 2
