"""The catalog is loaded into rows once, and updated when the file changes."""

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from pytest_django import DjangoAssertNumQueries

from bonobot.accounts.models import Organization
from mcp_servers.models import Preset, Server
from mcp_servers.presets.catalog import load_catalog
from mcp_servers.presets.sync_catalog import load_after_migrate, load_presets
from tests import database_flush

pytestmark = pytest.mark.django_db


def platform_slugs() -> set[str]:
    return set(Preset.objects.filter(organization=None).values_list("slug", flat=True))


def test_migrating_creates_every_preset() -> None:
    assert platform_slugs() == {entry.slug for entry in load_catalog()}
    for entry in load_catalog():
        row = Preset.objects.get(organization=None, slug=entry.slug)
        assert {name: getattr(row, name) for name in entry.to_columns()} == entry.to_columns()


def test_missing_package_names_are_listed_at_their_replacements() -> None:
    entries = [each for each in load_catalog() if each.replaces]
    assert entries
    for entry in entries:
        assert Preset.objects.get(slug=entry.slug).replaces == list(entry.replaces)


def test_a_second_load_writes_nothing(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    before = set(Preset.objects.values_list("pk", "created_at"))
    with django_assert_num_queries(1):  # the loaded editions
        load_after_migrate()
    with django_assert_num_queries(3):  # the savepoint, one query, and its release
        loaded = load_presets()
    assert (loaded.added, loaded.changed, loaded.removed) == ((), (), ())
    assert set(Preset.objects.values_list("pk", "created_at")) == before


@pytest.mark.parametrize("remaining", ["nothing", "an older edition"])
def test_migrating_loads_a_new_catalog(remaining: str) -> None:
    Preset.objects.exclude(slug="time" if remaining != "nothing" else "").delete()
    Preset.objects.update(catalog="older", description="Something else.")
    load_after_migrate()
    assert platform_slugs() == {entry.slug for entry in load_catalog()}
    assert Preset.objects.get(slug="time").description != "Something else."


def test_an_older_schema_isnt_loaded() -> None:
    Preset.objects.all().delete()
    loader = MigrationLoader(connection)
    older = loader.project_state()
    older.remove_field("mcp_servers", "preset", "catalog")
    without_presets = loader.project_state(loader.graph.root_nodes("tenancy")[0])
    for state in (older, without_presets):
        load_after_migrate(apps=state.apps)
    assert platform_slugs() == set()


def test_presets_follow_the_catalog_and_servers_are_kept() -> None:
    Preset.objects.filter(slug="time").update(description="Something else.", parameters=[])
    removed = Preset.objects.create(slug="gone", name="Gone", transport_type="http")
    acme = Organization.objects.create(name="Acme", slug="acme")
    server = Server.objects.create(
        organization=acme,
        scope_id=acme.pk,
        name="mine",
        slug="mine",
        transport_type="http",
        endpoint_config={"url": "https://mcp.example.com/mcp"},
        preset=removed,
    )
    loaded = load_presets()
    assert (loaded.added, loaded.changed, loaded.removed) == ((), ("time",), ("gone",))
    assert Preset.objects.get(slug="time").parameters
    server.refresh_from_db()
    assert server.preset is None


def test_an_organizations_own_presets_arent_changed() -> None:
    acme = Organization.objects.create(name="Acme", slug="acme")
    preset = Preset.objects.create(
        organization=acme, slug="time", name="Ours", transport_type="http"
    )
    load_presets()
    preset.refresh_from_db()
    assert preset.name == "Ours"
    assert Preset.objects.filter(slug="time").count() == 2


@pytest.mark.django_db(transaction=True)
def test_rows_that_a_test_changed_are_as_before_in_the_next_one() -> None:
    database_flush.empty_tables()
    Preset.objects.filter(slug="time").update(description="Something else.")
    Preset.objects.filter(slug="git").delete()
    database_flush.empty_tables()
    assert platform_slugs() == {entry.slug for entry in load_catalog()}
    assert Preset.objects.get(slug="time").description != "Something else."
