"""An organization of any size, to measure lists.

Rows are bulk inserted instead of created by the services, so that tens of thousands take seconds.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID, uuid4

import time_machine
from django.db.models import QuerySet
from django.test import Client
from django.utils import timezone

from agents.models import Agent, AgentServer
from bonobot.accounts.models import Organization, User
from bonobot.core.text.canonical_json import compute_json_digest
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Definition, Secret, Server
from tests import factories
from tests.admin_client import build_url

BATCH_SIZE = 2_000
MAX_DEFINITIONS = 1_000  # definitions of the largest server: the limit on definitions
ATTACHED = 50  # servers of the agent
VERBS = ("search", "list", "get", "create", "update", "delete", "describe", "export")
THINGS = ("issues", "buckets", "pages", "tickets", "rows", "users", "builds", "alerts", "files")
STATES = (
    *(Server.Status.CONNECTED,) * 7,
    Server.Status.DISCONNECTED,
    Server.Status.ERROR,
    Server.Status.NEEDS_REAUTH,
)


def add_servers(organization: Organization, count: int, *, first: int = 0) -> list[Server]:
    """Add organization servers, each with a secret; three in ten aren't connected."""
    now = timezone.now()
    servers = [
        Server(
            organization=organization,
            scope_id=organization.pk,
            name=f"Server {number:05}",
            slug=f"server-{number:05}",
            description=f"{THINGS[number % len(THINGS)]} of team {number % 97}",
            transport_type=Server.Transport.HTTP,
            endpoint_config={"url": f"https://mcp-{number}.example.com/mcp"},
            status=STATES[number % len(STATES)],
            latency_ms=number % 900,
            discovered_at=now,
            checked_at=now - timedelta(seconds=number),
            last_connected_at=now - timedelta(seconds=number),
        )
        for number in range(first, first + count)
    ]
    Server.objects.bulk_create(servers, batch_size=BATCH_SIZE)
    secrets = [
        Secret(
            organization=organization,
            server=server,
            placement=Secret.Placement.HEADER,
            name="Authorization",
            value="Bearer made-up",
        )
        for server in servers
    ]
    Secret.objects.bulk_create(secrets, batch_size=BATCH_SIZE)
    return servers


def declare_tools(servers: list[Server], count: int) -> None:
    """Declare `count` tools per server: of ten, eight are approved, one is new, one changed."""
    Definition.objects.bulk_create(
        _build_definitions(servers, count), batch_size=BATCH_SIZE, ignore_conflicts=True
    )


def _build_definitions(servers: list[Server], count: int) -> Iterator[Definition]:
    now = timezone.now()
    for server in servers:
        for number in range(count):
            payload = build_declaration(number)
            digest = _compute_digest(number)
            pinned = {8: "", 9: "0" * 64}.get(number % 10, digest)
            yield Definition(
                organization_id=server.organization_id,
                server=server,
                kind=Definition.Kind.TOOL,
                name=payload["name"],
                description=payload["description"],
                payload=payload,
                digest=digest,
                schema_verdict="inline",
                pinned=payload if pinned else None,
                pinned_digest=pinned,
                pinned_at=now if pinned else None,
                last_seen_at=now,
            )


@cache
def build_declaration(number: int) -> dict[str, Any]:
    verb, thing = VERBS[number % len(VERBS)], THINGS[number % len(THINGS)]
    properties = {
        name: {"type": "string", "description": f"The {name} that is meant, as the service has it."}
        for name in ("project", "query", "cursor")
    }
    return {
        "name": f"{verb}_{thing}_{number}",
        "description": f"{verb.title()} {thing} of a project, page by page, newest first.",
        "inputSchema": {"type": "object", "properties": properties, "required": ["project"]},
    }


@cache
def _compute_digest(number: int) -> str:
    return compute_json_digest(build_declaration(number))


def attach_servers(agent: Agent, servers: list[Server]) -> None:
    """Attach servers to an agent."""
    AgentServer.objects.bulk_create(
        [
            AgentServer(organization_id=agent.organization_id, agent=agent, server=server)
            for server in servers
        ],
        batch_size=BATCH_SIZE,
    )


def create_calls(
    organization: Organization, agent: Agent, servers: list[Server], count: int
) -> None:
    """Write completed calls of the last two days, without digests: they can't be verified."""
    rows: QuerySet[AuditRow] = QuerySet(model=AuditRow)  # the model's own manager refuses
    first = 1_000_000 + rows.filter(organization_id=organization.pk).count()
    calls = build_calls(organization.pk, agent, servers, range(first, first + count))
    rows.bulk_create(calls, batch_size=BATCH_SIZE)


def build_calls(
    organization_id: UUID, agent: Agent, servers: list[Server], sequence_numbers: range
) -> Iterator[AuditRow]:
    now = timezone.now()
    for number, seq in enumerate(sequence_numbers):
        server = servers[number % len(servers)]
        tool = build_declaration(number % 20)["name"]
        at = now - timedelta(seconds=number * 172_800 / len(sequence_numbers))
        outcome = ("error" if number % 20 == 0 else "refused") if number % 10 == 0 else "ok"
        yield AuditRow(
            id=uuid4(),
            organization_id=organization_id,
            seq=seq,
            digest="0" * 64,
            opened="{}",
            opened_at=at,
            closed_at=at,
            action="mcp_tool_call",
            event_type="call",
            resource_type="mcp_tool",
            resource_id=tool,
            resource_name=tool,
            actor_kind="session",
            actor_id="1",
            actor_label="crowd",
            decision="deny" if outcome == "refused" else "allow",
            rule="policy:agent",
            code="tool_denied" if outcome == "refused" else "",
            agent_id=agent.pk,
            agent_name=agent.name,
            server_id=server.pk,
            server_name=server.name,
            tool_name=tool,
            outcome=outcome,
            duration_ms=number % 700,
        )


@dataclass(frozen=True)
class LargeOrganization:
    """A large organization with a signed-in administrator and the pages to open."""

    organization: Organization
    agent: Agent
    server: Server
    client: Client

    def add_rows(self, *, servers: int, each: int, calls: int) -> None:
        """Add servers with `each` definitions, and calls in the audit log."""
        first = Server.objects.for_organization(self.organization.pk).count()
        added = add_servers(self.organization, servers, first=first)
        declare_tools(added, each)
        declare_tools([self.server], min(MAX_DEFINITIONS, servers * each))
        attach_servers(self.agent, added[:ATTACHED])
        create_calls(self.organization, self.agent, added, calls)

    def open(self, url_path: str) -> None:
        """Open a page; fail unless the status is 200."""
        response = self.client.get(url_path)
        assert response.status_code == 200, (response.status_code, url_path)

    def list_pages(self) -> list[tuple[str, str]]:
        """Return title and URL of every list and detail page."""
        servers = build_url("mcp_servers_server_changelist")
        definitions = build_url("mcp_servers_server_tools", self.server.pk)
        audit = build_url("ledger_auditrow_changelist")
        server, agent = f"/api/mcp-servers/{self.server.pk}", f"/api/agents/{self.agent.pk}"
        return [
            ("dashboard", build_url("index")),
            ("servers", servers),
            ("servers, a later page", f"{servers}?p=2"),
            ("servers, by waiting", f"{servers}?o=-5"),
            ("servers, search", f"{servers}?q=team+42"),
            ("servers, search of a tool", f"{servers}?q=search_issues"),
            ("servers, with problems", f"{servers}?status__in=error"),
            ("servers, something waits", f"{servers}?waiting=yes"),
            ("servers, private", f"{servers}?scope=private"),
            ("server", build_url("mcp_servers_server_change", self.server.pk)),
            (
                "server: configuration",
                build_url("mcp_servers_server_configuration", self.server.pk),
            ),
            ("server: health", build_url("mcp_servers_server_health", self.server.pk)),
            ("server: calls", build_url("mcp_servers_server_calls", self.server.pk)),
            ("server: try it", build_url("mcp_servers_server_try", self.server.pk)),
            ("definitions", definitions),
            ("definitions, search", f"{definitions}?q=issues"),
            ("definitions, waiting", f"{definitions}?state=waiting"),
            ("definitions, a later page", f"{definitions}?page=2"),
            ("presets", build_url("mcp_servers_server_presets")),
            ("agents", build_url("agents_agent_changelist")),
            ("agent: servers", build_url("agents_agent_servers", self.agent.pk)),
            ("agent: pick servers", build_url("agents_agent_attach_servers", self.agent.pk)),
            (
                "agent: pick, search",
                build_url("agents_agent_attach_servers", self.agent.pk) + "?q=team",
            ),
            ("agent: policy", build_url("agents_agent_policy", self.agent.pk)),
            ("sessions", build_url("agents_session_changelist")),
            ("audit", audit),
            ("audit, one server", f"{audit}?server_id={self.server.pk}"),
            ("audit, errors", f"{audit}?outcome__in=error"),
            ("audit, search", f"{audit}?q=search_issues"),
            ("REST servers", "/api/mcp-servers"),
            ("REST servers, 500", "/api/mcp-servers?limit=500"),
            ("REST servers, status", "/api/mcp-servers?status=error"),
            ("REST servers, q", "/api/mcp-servers?q=0042&scope=all"),
            ("REST server", server),
            ("REST definitions", f"{server}/definitions"),
            ("REST definitions, state", f"{server}/definitions?state=pending&q=issues"),
            ("REST tools, 500", f"{server}/tools?limit=500"),
            ("REST agents", "/api/agents"),
            ("REST agent's servers", f"{agent}/mcp-servers"),
            ("REST agent's tools", f"{agent}/tools"),
            ("REST agent's tools, 500", f"{agent}/tools?limit=500"),
            ("REST audit", "/api/audit"),
            ("REST audit, one server", f"/api/audit?server={self.server.pk}"),
        ]


def create_large_organization(
    *, servers: int, each: int, calls: int, founded: datetime | None = None
) -> LargeOrganization:
    """Create an organization with servers, `each` definitions per server, and calls.

    `founded` is the time of the first entry of its audit log, now by default.
    """
    with time_machine.travel(founded, tick=True) if founded else nullcontext():
        organization = factories.create_organization("town")
        agent = factories.create_agent(organization, "mayor")
    [largest] = add_servers(organization, 1)
    attach_servers(agent, [largest])
    client = Client(headers={"host": "localhost"})
    client.force_login(User.objects.create_superuser("root-of-town", password="pw"))
    result = LargeOrganization(organization, agent, largest, client)
    result.add_rows(servers=servers - 1, each=each, calls=calls)
    return result
