"""Governed rows: every write increments the policy generation, observed fields don't."""

import uuid

import pytest

from bonobot.accounts.models import Organization
from bonobot.core.problems import NotFound
from bonobot.ledger.policy_generations import load_policy_generation
from mcp_servers.models import Definition, Server

pytestmark = pytest.mark.django_db


@pytest.fixture
def organization():
    return Organization.objects.create(name="Acme", slug="acme")


@pytest.fixture
def server(organization):
    return Server.objects.create(
        organization=organization,
        scope_id=organization.pk,
        name="time",
        slug="time",
        transport_type="stdio",
    )


def definition(server, name="t"):
    return Definition(
        organization_id=server.organization_id, server=server, kind="tool", name=name, digest="d"
    )


WRITES = {
    "save": lambda server: server.save(),
    "delete": lambda server: server.delete(),
    "update": lambda server: Server.objects.filter(pk=server.pk).update(enabled=False),
    "delete many": lambda server: Server.objects.filter(pk=server.pk).delete(),
    "create": lambda server: definition(server).save(),
    "bulk create": lambda server: Definition.objects.bulk_create([definition(server)]),
    "bulk update": lambda server: Server.objects.bulk_update([server], ["enabled"]),
    "update or create": lambda server: Server.objects.update_or_create(
        pk=server.pk, defaults={"enabled": False}
    ),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_every_write_increments_the_generation(server, write):
    before = load_policy_generation(server.organization_id)
    write(server)
    assert load_policy_generation(server.organization_id) > before


def test_an_update_of_observed_fields_keeps_the_generation(server):
    before = load_policy_generation(server.organization_id)
    Server.objects.filter(pk=server.pk).update(status="connected", failures=3)
    server.latency_ms = 5
    server.save(update_fields=["latency_ms"])
    assert load_policy_generation(server.organization_id) == before


def test_a_write_doesnt_affect_other_organizations(server):
    other_organization = Organization.objects.create(name="Other", slug="other")
    before = load_policy_generation(other_organization.pk)
    server.save()
    assert load_policy_generation(other_organization.pk) == before


@pytest.mark.parametrize("key", [uuid.UUID(int=1), "not-a-uuid", "", None])
def test_a_missing_row_raises_not_found(organization, key):
    with pytest.raises(NotFound) as raised:
        Server.objects.get_or_404(organization.pk, pk=key)
    assert raised.value.code == "not_found"


def test_a_row_of_another_organization_raises_not_found(server):
    other_organization = Organization.objects.create(name="Other", slug="other")
    with pytest.raises(NotFound):
        Server.objects.get_or_404(other_organization.pk, pk=server.pk)
