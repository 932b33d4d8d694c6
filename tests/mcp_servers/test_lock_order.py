"""Concurrent writers of one server's rows lock in the same order, so none fails."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.utils import timezone

from agents.services import delete_agent
from bonobot.accounts.models import Organization
from bonobot.core.text.canonical_json import compute_digest
from bonobot.ledger.types import Actor
from mcp_servers import discovery
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.list_definitions import RawDefinition, ServerDeclarations
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.flow_labels.effective_labels import set_labels
from mcp_servers.health.server_status import record_failure
from mcp_servers.models import ChangeSubscription, Definition, ResourceSubscription, Server
from mcp_servers.services import delete_server
from mcp_servers.subscriptions import leases
from tests import factories
from tests.concurrent_writers import on_postgresql, run_behind, run_crossed

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]

SYSTEM = Actor(kind="system", id="test", label="test")
URL = "http://127.0.0.1:9/mcp"


def build_declarations(*tools: str, text: str = "") -> ServerDeclarations:
    items = tuple(
        RawDefinition("tool", name, {"name": name, "description": text, "inputSchema": {}})
        for name in tools
    )
    return ServerDeclarations(
        era="modern",
        protocol_version="2026-07-28",
        server_info={},
        capabilities={"tools": {"listChanged": True}},
        instructions="",
        discovery={"capabilities": {"tools": {"listChanged": True}}},
        items=items,
        latency_ms=1,
        complete=frozenset({"tool"}),
    )


def save(server: Server, declarations: ServerDeclarations) -> discovery.DiscoveryResult:
    return discovery.save_declarations(server.pk, declarations, {}, actor=SYSTEM, kind="discovery")


def create_discovered_server(
    organization: Organization, name: str = "web", scope_id: UUID | None = None
) -> Server:
    server = factories.create_http_server(organization, URL, name)
    if scope_id is not None:
        Server.objects.filter(pk=server.pk).update(scope_id=scope_id)
    save(server, build_declarations("a", "b", "c"))
    server.refresh_from_db()
    return server


def subscribe(server: Server, holder: UUID, *uris: str) -> list[UUID]:
    rows = leases.add_watched_resources(
        server.organization_id, leases.UpdateSource(server.pk), uris
    )
    ids = [row.id for row in rows]
    leases.claim_resources(holder, ids)
    return ids


def get_digests(server: Server) -> dict[UUID, str]:
    return dict(server.definitions.values_list("pk", "digest"))


def test_a_server_is_deleted_while_it_is_discovered(acme: Organization) -> None:
    server, administrator = create_discovered_server(acme), factories.build_administrator(acme)
    run_crossed(
        lambda: save(server, build_declarations("a", text="Altered.")),
        lambda: delete_server(administrator, server),
        at='UPDATE "mcp_servers_server"',
    )
    assert not Server.objects.exists()


def test_a_server_is_deleted_while_a_check_fails(acme: Organization) -> None:
    server, administrator = create_discovered_server(acme), factories.build_administrator(acme)
    long_ago = timezone.now() - timedelta(days=2)
    Server.objects.filter(pk=server.pk).update(checked_at=long_ago)
    problem = UpstreamError("Away.", code="server_unreachable", server=server.name)
    run_crossed(
        lambda: record_failure(server.pk, "health", problem),
        lambda: delete_server(administrator, server),
        at='INSERT INTO "mcp_servers_unasked"',
    )
    assert not Server.objects.exists()


def test_definitions_are_approved_while_their_server_is_discovered(acme: Organization) -> None:
    server, administrator = create_discovered_server(acme), factories.build_administrator(acme)
    digests = dict(reversed(get_digests(server).items()))
    _, result = run_crossed(
        lambda: approve_definitions(administrator, server, digests),
        lambda: save(server, build_declarations("a", "b", "c", text="Altered.")),
        at='UPDATE "mcp_servers_definition"',
    )
    assert result.changed == 3


def test_two_people_approve_and_label_the_same_definitions(acme: Organization) -> None:
    server, administrator = create_discovered_server(acme), factories.build_administrator(acme)
    rows = list(Definition.objects.filter(server=server))
    run_crossed(
        lambda: approve_definitions(
            administrator, server, dict(reversed(get_digests(server).items()))
        ),
        lambda: set_labels(administrator, server, rows, ["private_data"]),
        at='UPDATE "mcp_servers_definition"',
    )
    assert not server.definitions.filter(labels=None).exists()
    assert not server.definitions.awaiting_review().exists()


def test_a_server_that_comes_back_is_discovered_while_it_is_approved(acme: Organization) -> None:
    server, administrator = create_discovered_server(acme), factories.build_administrator(acme)
    Server.objects.filter(pk=server.pk).update(status=Server.Status.ERROR)
    declarations, digests = build_declarations("a", text="Altered."), get_digests(server)
    declarations = replace(
        declarations, items=declarations.items + build_declarations("b", "c").items
    )
    _, approval = run_crossed(
        lambda: save(server, declarations),
        lambda: approve_definitions(administrator, server, digests),
        at='INSERT INTO "mcp_servers_check"',
    )
    assert (sorted(approval.approved), approval.skipped) == (["b", "c"], ("a",))


def test_the_servers_of_an_agent_are_deleted_while_their_leases_are_renewed(
    acme: Organization,
) -> None:
    administrator, agent, holder = (
        factories.build_administrator(acme),
        factories.create_agent(acme),
        uuid4(),
    )
    for number in range(4):
        create_discovered_server(acme, f"s{number}", scope_id=agent.pk)
    ChangeSubscription.objects.update(holder=holder, heartbeat_at=timezone.now())
    run_crossed(
        lambda: delete_agent(administrator, agent),
        lambda: leases.renew_change_leases(holder),
        at='DELETE FROM "mcp_servers_watch"',
    )
    assert not ChangeSubscription.objects.exists()


URIS = [f"news://{number}" for number in range(9)]


@pytest.mark.parametrize("operation", ["want", "beat", "changed", "settle", "let_go"])
def test_two_processes_write_the_same_resources_one_after_the_other(
    acme: Organization, operation: str
) -> None:
    server, holder = create_discovered_server(acme), uuid4()
    source = leases.UpdateSource(server.pk)
    ids = subscribe(server, holder, *URIS)
    operations = {
        "want": lambda: leases.add_watched_resources(acme.pk, source, list(reversed(URIS))),
        "beat": lambda: leases.renew_resource_leases(holder, list(reversed(ids))),
        "changed": lambda: leases.increment_change_counts(holder, list(reversed(ids))),
        "settle": lambda: leases.settle_resources(holder, list(reversed(ids)), []),
        "let_go": lambda: leases.release_resource_leases(holder),
    }
    middle = ResourceSubscription.objects.filter(server=server, digest=compute_digest(URIS[4]))
    run_behind(
        lambda: middle.update(state=ResourceSubscription.State.ASKED),
        lambda: leases.add_watched_resources(acme.pk, source, URIS),
        operations[operation],
    )
    assert ResourceSubscription.objects.count() == len(URIS)


def test_a_server_is_deleted_while_its_subscriptions_are_written(acme: Organization) -> None:
    server, administrator, holder = (
        create_discovered_server(acme),
        factories.build_administrator(acme),
        uuid4(),
    )
    ids = subscribe(server, holder, *URIS)
    middle = ResourceSubscription.objects.filter(server=server, digest=compute_digest(URIS[4]))
    run_behind(
        lambda: middle.update(state=ResourceSubscription.State.ASKED),
        lambda: leases.increment_change_counts(holder, ids),
        lambda: delete_server(administrator, server),
    )
    assert not ResourceSubscription.objects.exists()
