"""Servers, and their resources, templates and prompts, as calls see them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast
from uuid import UUID

from agents.policies.decisions import (
    DefinitionFacts,
    EffectivePolicy,
    Kind,
    PolicyDecision,
    decide_definition,
)
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.flow_labels.effective_labels import get_effective_labels, load_label_context
from mcp_servers.flow_labels.store_use import READS_ONLY, StoreUse
from mcp_servers.flow_labels.suggested_labels import LabelContext
from mcp_servers.models import Definition, Server
from mcp_servers.oauth_client.access_tokens import is_per_person
from mcp_servers.schemas import SchemaVerdict
from mcp_servers.schemas.prompt_arguments import build_prompt_schema
from mcp_servers.uri_templates import list_variables


@dataclass(frozen=True, slots=True)
class CallPrice:
    """The price of a server in micro-dollars: per call and per second of running time."""

    per_call: int = 0
    per_second: int = 0

    @property
    def is_free(self) -> bool:
        """Whether calls cost nothing."""
        return not self.per_call and not self.per_second


FREE = CallPrice()


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server's data for calls; the endpoint knows which values must be masked."""

    id: UUID
    name: str
    slug: str
    enabled: bool
    endpoint: ServerEndpoint
    origin: LabelContext = field(default_factory=LabelContext)
    price: CallPrice = FREE
    calls_per_minute: int | None = None
    has_failed: bool = False  # its last call or check before the snapshot
    is_per_person: bool = False  # each person signs in to it separately


def build_server_facts(server: Server) -> ServerFacts:
    """Return what calls need to know of a server."""
    endpoint = build_endpoint(server)
    return ServerFacts(
        id=server.pk,
        name=server.name,
        slug=server.slug,
        enabled=server.enabled,
        endpoint=endpoint,
        origin=load_label_context(server),
        price=CallPrice(server.call_price, server.second_price),
        calls_per_minute=server.calls_per_minute,
        has_failed=server.status in (Server.Status.ERROR, Server.Status.NEEDS_REAUTH),
        is_per_person=is_per_person(endpoint),
    )


@dataclass(frozen=True, slots=True)
class SnapshotDefinition:
    """A resource, template, skill or prompt of a server; `name` is its URI, template or own name.

    `variables` are the template's variables, none if it can't be parsed.
    """

    name: str
    facts: DefinitionFacts
    decision: PolicyDecision
    declaration: Mapping[str, Any]
    digest: str = ""
    definition_id: UUID | None = None
    labels: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    store_use: ClassVar[StoreUse] = READS_ONLY

    @property
    def schema_verdict(self) -> SchemaVerdict:
        """How arguments are checked: inline, because we build these schemas."""
        return SchemaVerdict("inline", "")

    @property
    def _texts(self) -> Mapping[str, Any]:
        frontmatter = self.declaration.get("frontmatter")
        is_skill = self.facts.kind == "skill" and isinstance(frontmatter, Mapping)
        return cast(Mapping[str, Any], frontmatter) if is_skill else self.declaration

    @property
    def title(self) -> str:
        """The title, else the name, else an empty string."""
        title = self._texts.get("title") or self._texts.get("name")
        return title if isinstance(title, str) else ""

    @property
    def description(self) -> str:
        """The description or an empty string."""
        description = self._texts.get("description")
        return description if isinstance(description, str) else ""

    @property
    def argument_schema(self) -> dict[str, Any]:
        """The JSON Schema of a prompt's declared arguments, all of them strings."""
        return build_prompt_schema(self.declaration.get("arguments") or ())


# Server, kind and own name identify a resource, template or prompt.
DefinitionKey = tuple[UUID, str, str]


def split_tools(rows: Iterable[Definition]) -> tuple[list[Definition], list[Definition]]:
    """Return the tools, and the resources, templates, skills and prompts."""
    definitions = list(rows)
    other_kinds = (
        Definition.Kind.RESOURCE,
        Definition.Kind.RESOURCE_TEMPLATE,
        Definition.Kind.SKILL,
        Definition.Kind.PROMPT,
    )
    return (
        [row for row in definitions if row.kind == Definition.Kind.TOOL],
        [row for row in definitions if row.kind in other_kinds],
    )


def list_servers_with_changed_instructions(rows: Iterable[Definition]) -> frozenset[UUID]:
    """Return the servers whose instructions differ from the approved ones.

    None of their definitions can be called until the new instructions are reviewed, because
    changed instructions may mean a different server.
    """
    return frozenset(
        row.server_id
        for row in rows
        if row.kind == Definition.Kind.INSTRUCTIONS
        and row.present
        and row.pinned_digest not in ("", row.digest)
    )


def get_effective_state(row: Definition, changed_servers: frozenset[UUID]) -> str:
    """Return a definition's state for decisions, considering its server's instructions."""
    is_blocked = row.server_id in changed_servers and row.state == Definition.State.APPROVED
    return "instructions_changed" if is_blocked else str(row.state)


def collect_server_instructions(
    rows: Iterable[Definition],
    servers: Mapping[UUID, ServerFacts],
    effective_policy: EffectivePolicy,
) -> dict[str, str]:
    """Return the approved instructions of enabled servers, by server name.

    Changed instructions are withheld, and block the server's other definitions.
    """
    instructions = {}
    for row in rows:
        if row.kind != Definition.Kind.INSTRUCTIONS or not row.enabled:
            continue
        server, scope = servers[row.server_id], effective_policy.find_scope(row.server_id)
        in_use = server.enabled and scope is not None and scope.enabled
        if in_use and row.state == Definition.State.APPROVED:
            instructions[server.name] = str(row.payload.get("text") or "")
    return instructions


def build_definitions(
    rows: Iterable[Definition],
    servers: Mapping[UUID, ServerFacts],
    effective_policy: EffectivePolicy,
    changed_servers: frozenset[UUID] = frozenset(),
    app_pages: Collection[tuple[UUID | None, str]] = (),
) -> dict[DefinitionKey, SnapshotDefinition]:
    """Return the definitions of the rows, each with its decision.

    `changed_servers` are the servers with changed instructions, `app_pages` the servers and URIs of
    the pages of callable tools, which need no selection of their own.
    """
    definitions = {}
    for row in rows:
        server = servers[row.server_id]
        facts = _build_definition_facts(row, server, get_effective_state(row, changed_servers))
        if facts.kind == "resource" and (row.server_id, row.name) in app_pages:
            facts = replace(facts, is_app_page=True)
        definitions[row.server_id, row.kind, row.name] = SnapshotDefinition(
            name=row.name,
            facts=facts,
            decision=decide_definition(facts, effective_policy),
            declaration=row.payload,
            digest=row.digest,
            definition_id=row.pk,
            labels=get_effective_labels(row, server.origin),
            # Parsed here, off the event loop: importing the parser takes time.
            variables=list_variables(row.name) if facts.kind == "resource_template" else (),
        )
    return definitions


def _build_definition_facts(row: Definition, server: ServerFacts, state: str) -> DefinitionFacts:
    return DefinitionFacts(
        kind=cast(Kind, row.kind),
        own_name=row.name,
        server_id=server.id,
        server_name=server.name,
        server_enabled=server.enabled,
        state=state,
        enabled=row.enabled,
    )
