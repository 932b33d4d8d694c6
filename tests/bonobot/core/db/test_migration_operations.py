"""Batched migrations leave what Django's leave, forwards and backwards, with less work."""

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


def _create(name: str, **fields: "models.Field[Any, Any]") -> Operation:
    key = models.AutoField(primary_key=True)
    return migrations.CreateModel(name, [("id", key), *fields.items()])


def _refer(name: str, **more: Any) -> "models.ForeignKey[Any, Any]":
    return models.ForeignKey(f"{LABEL}.{name}", models.CASCADE, **more)


def operations() -> list[Operation]:
    """Models that refer to each other, a field between, and a renamed model."""
    shelves = [_create(f"Shelf{number}", hall=_refer("Hall")) for number in range(SHELVES)]
    return [
        _create("Hall", title=models.CharField(max_length=9, unique=True)),
        _create("Book", hall=_refer("Hall"), others=models.ManyToManyField(f"{LABEL}.Book")),
        migrations.AddField("Hall", "first", _refer("Book", null=True, related_name="+")),
        *shelves,
        *rename_model("Book", "Volume", table=f"{LABEL}_book"),
        RenameContentType(LABEL, "book", "volume"),
        migrations.AddField("Volume", "pages", models.IntegerField(null=True)),
    ]


def new_migration(base: type[Migration]) -> Migration:
    return type("Migration", (base,), {"operations": operations()})("0001_initial", LABEL)


def new_state() -> ProjectState:
    state = ProjectState()
    state.add_model(ModelState.from_model(ContentType))
    return state


def tables() -> dict[str, Any]:
    """Return columns and constraints of the tables, whatever names the constraints have."""
    inspected, found = connection.introspection, {}
    with connection.cursor() as cursor:
        for table in inspected.table_names(cursor):
            if table.startswith(LABEL):
                columns = [
                    (column.name, column.type_code, column.null_ok)
                    for column in inspected.get_table_description(cursor, table)
                ]
                constraints = inspected.get_constraints(cursor, table).values()
                found[table] = sorted(columns), sorted(map(repr, constraints))
    return found


def applied(base: type[Migration]) -> tuple[ProjectState, dict[str, Any], dict[str, Any]]:
    """Return the state, the tables, and what is left of them when the migration is taken back."""
    migration = new_migration(base)
    with connection.schema_editor(atomic=True) as editor:
        state = migration.apply(new_state(), editor)
    after = tables()
    with connection.schema_editor(atomic=True) as editor:
        migration.unapply(new_state(), editor)
    return state, after, tables()


@pytest.fixture
def content_type(transactional_db: None) -> Iterator[ContentType]:
    """The content type of the model that is renamed."""
    made = ContentType.objects.create(app_label=LABEL, model="book")
    yield made
    made.delete()


def test_a_batched_migration_leaves_what_others_leave(content_type: ContentType) -> None:
    state, after, left = applied(BatchedMigration)
    expected_state, expected, expected_left = applied(Migration)
    assert state == expected_state
    assert after == expected
    assert len(expected) == SHELVES + 3
    assert left == expected_left == {}


def test_a_renamed_model_keeps_its_content_type(content_type: ContentType) -> None:
    migration = new_migration(BatchedMigration)
    with connection.schema_editor(atomic=True) as editor:
        migration.apply(new_state(), editor)
    content_type.refresh_from_db()
    assert content_type.model == "volume"
    with connection.schema_editor(atomic=True) as editor:
        migration.unapply(new_state(), editor)
    content_type.refresh_from_db()
    assert content_type.model == "book"


def test_a_batch_builds_the_classes_of_its_models_once(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    render = ModelState.render

    def count(state: ModelState, apps: Any) -> Any:
        built.append(state.name)
        return render(state, apps)

    monkeypatch.setattr(ModelState, "render", count)
    found = {}
    for base in (BatchedMigration, Migration):
        with connection.schema_editor(atomic=True) as editor:
            new_migration(base).apply(new_state(), editor)
        found[base] = len(built)
        with connection.schema_editor(atomic=True) as editor:
            new_migration(base).unapply(new_state(), editor)
        built.clear()
    assert found[BatchedMigration] < found[Migration] / 2
