"""What servers offer beside tools, as snapshots hold it: declared, and decided."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast
from uuid import UUID

from agents.governance.offers import Kind, OfferFacts, decide_offer
from agents.governance.policies import Decision, Ruling
from mcp_servers.labelled import labels_of
from mcp_servers.models import Definition
from mcp_servers.schemas import Judgement
from mcp_servers.store_use import READS_ONLY, StoreUse
from mcp_servers.uri_templates import variables

if TYPE_CHECKING:
    from agents.governance.snapshots import ServerFacts


@dataclass(frozen=True, slots=True)
class Offer:
    """A resource, template or prompt of a server; `name` is its URI, template or own name.

    `variables` are those of a template: none where it means nothing.
    """

    name: str
    facts: OfferFacts
    decision: Decision
    declaration: Mapping[str, Any]
    digest: str = ""
    definition_id: UUID | None = None
    labels: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    store_use: ClassVar[StoreUse] = READS_ONLY

    @property
    def judgement(self) -> Judgement:
        """How arguments are checked: the schemas are ours, so at once."""
        return Judgement("inline", "")

    @property
    def title(self) -> str:
        """The title, or the name of a resource, or nothing."""
        said = self.declaration.get("title") or self.declaration.get("name")
        return said if isinstance(said, str) else ""

    @property
    def description(self) -> str:
        """The description, or nothing."""
        said = self.declaration.get("description")
        return said if isinstance(said, str) else ""

    @property
    def argument_schema(self) -> dict[str, Any]:
        """A prompt's arguments as a JSON Schema: texts, those that it declares and no others."""
        declared = self.declaration.get("arguments") or ()
        return {
            "type": "object",
            "properties": {
                one["name"]: {"type": "string", "description": str(one.get("description") or "")}
                for one in declared
            },
            "required": [one["name"] for one in declared if one.get("required") is True],
            "additionalProperties": False,
        }


# A resource, template or prompt is its server, its kind and its own name.
OfferKey = tuple[UUID, str, str]


def split(rows: Iterable[Definition]) -> tuple[list[Definition], list[Definition]]:
    """Return the tools, and what else can be asked for."""
    found = list(rows)
    others = (
        Definition.Kind.RESOURCE,
        Definition.Kind.RESOURCE_TEMPLATE,
        Definition.Kind.PROMPT,
    )
    return (
        [row for row in found if row.kind == Definition.Kind.TOOL],
        [row for row in found if row.kind in others],
    )


def servers_with_changed_instructions(rows: Iterable[Definition]) -> frozenset[UUID]:
    """Return the servers whose instructions aren't what a person approved any more.

    Nothing of them can be called until somebody has reviewed the new ones: a server that says
    something else about its tools may be another server.
    """
    return frozenset(
        row.server_id
        for row in rows
        if row.kind == Definition.Kind.INSTRUCTIONS
        and row.present
        and row.pinned_digest not in ("", row.digest)
    )


def state_of(row: Definition, changed: frozenset[UUID]) -> str:
    """Return a definition's state as decisions see it, with what its server's instructions do."""
    held = row.server_id in changed and row.state == Definition.State.APPROVED
    return "instructions_changed" if held else str(row.state)


def notes_from(
    rows: Iterable[Definition], servers: "Mapping[UUID, ServerFacts]", ruling: Ruling
) -> dict[str, str]:
    """Return the instructions of servers that are approved as they stand and in use.

    They are a definition of their own: those that changed are withheld, and hold all else.
    """
    found = {}
    for row in rows:
        if row.kind != Definition.Kind.INSTRUCTIONS or not row.enabled:
            continue
        server, scope = servers[row.server_id], ruling.scope(row.server_id)
        in_use = server.enabled and scope is not None and scope.enabled
        if in_use and row.state == Definition.State.APPROVED:
            found[server.name] = str(row.payload.get("text") or "")
    return found


def offers_from(
    rows: Iterable[Definition],
    servers: "Mapping[UUID, ServerFacts]",
    ruling: Ruling,
    changed: frozenset[UUID] = frozenset(),
) -> dict[OfferKey, Offer]:
    """Return what the rows offer, each with the decision about it.

    `changed` are the servers with changed instructions.
    """
    offers = {}
    for row in rows:
        server = servers[row.server_id]
        facts = _offer_facts(row, server, state_of(row, changed))
        offers[row.server_id, row.kind, row.name] = Offer(
            name=row.name,
            facts=facts,
            decision=decide_offer(facts, ruling),
            declaration=row.payload,
            digest=row.digest,
            definition_id=row.pk,
            labels=labels_of(row, server.origin),
            # Parsed here, beside the loop: what parses takes its time to load.
            variables=variables(row.name) if facts.kind == "resource_template" else (),
        )
    return offers


def _offer_facts(row: Definition, server: "ServerFacts", state: str) -> OfferFacts:
    return OfferFacts(
        kind=cast(Kind, row.kind),
        own_name=row.name,
        server_id=server.id,
        server_name=server.name,
        server_enabled=server.enabled,
        state=state,
        enabled=row.enabled,
    )
