"""The catalogue becomes rows, once, and the rows follow the file."""

import pytest
from pytest_django import DjangoAssertNumQueries

from bonobot.tenancy.models import Organization
from mcp_servers.models import Preset, Server
from mcp_servers.presets.catalogue import load
from mcp_servers.presets.loading import load_presets

pytestmark = pytest.mark.django_db


def platform_slugs() -> set[str]:
    return set(Preset.objects.filter(organization=None).values_list("slug", flat=True))


def test_an_empty_database_gets_every_entry() -> None:
    loaded = load_presets()
    assert set(loaded.added) == platform_slugs() == {entry.slug for entry in load()}
    for entry in load():
        row = Preset.objects.get(organization=None, slug=entry.slug)
        assert {name: getattr(row, name) for name in entry.columns()} == entry.columns()


def test_a_second_run_writes_nothing(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    load_presets()
    before = set(Preset.objects.values_list("pk", "created_at"))
    with django_assert_num_queries(3):  # the savepoint, one look, and its release
        loaded = load_presets()
    assert (loaded.added, loaded.changed, loaded.removed) == ((), (), ())
    assert set(Preset.objects.values_list("pk", "created_at")) == before


def test_rows_follow_the_file_and_servers_stay() -> None:
    load_presets()
    Preset.objects.filter(slug="time").update(description="Something else.", parameters=[])
    gone = Preset.objects.create(slug="gone", name="Gone", transport_type="http")
    acme = Organization.objects.create(name="Acme", slug="acme")
    server = Server.objects.create(
        organization=acme,
        scope_id=acme.pk,
        name="mine",
        slug="mine",
        transport_type="http",
        endpoint_config={"url": "https://mcp.example.com/mcp"},
        preset=gone,
    )
    loaded = load_presets()
    assert (loaded.added, loaded.changed, loaded.removed) == ((), ("time",), ("gone",))
    assert Preset.objects.get(slug="time").parameters
    server.refresh_from_db()
    assert server.preset is None


def test_an_organizations_own_presets_are_left_alone() -> None:
    acme = Organization.objects.create(name="Acme", slug="acme")
    own = Preset.objects.create(organization=acme, slug="time", name="Ours", transport_type="http")
    load_presets()
    own.refresh_from_db()
    assert own.name == "Ours"
    assert Preset.objects.filter(slug="time").count() == 2
