"""Redaction: what is kept of a call, without secrets; and what a call gives, without ours.

What is kept loses every stored secret of the organization, what is named like one and what looks
like one. A result that somebody works with loses the stored secrets only: whatever else it says
belongs to whoever asked.
"""

import json
from typing import Any
from uuid import UUID

from agents.governance.snapshots import ServerFacts, Snapshot
from bonobot.ledger.fingerprints import fingerprint
from bonobot.lib.known_secrets import masker_at_hand, read_masker
from bonobot.lib.learning import memory_of
from bonobot.lib.masking import Masker
from bonobot.lib.runtime import runtime


async def prepare(snapshot: Snapshot) -> None:
    """See to it that the organization's secrets are known, beside the loop where they aren't."""
    organization_id, generation = snapshot.organization_id, snapshot.generation
    if masker_at_hand(organization_id, generation) is None:
        await runtime().orm(read_masker, organization_id, generation)


def kept(value: Any, organization_id: UUID, server: ServerFacts | None) -> Any:
    """Return a value as it may be kept; also what its own server holds that is no secret."""
    if server is not None:
        value = server.endpoint.masker.exact(value)
    return _masker(organization_id).value(value)


def given(result: dict[str, Any], organization_id: UUID) -> dict[str, Any]:
    """Return a result without the stored secrets."""
    found: dict[str, Any] = _masker(organization_id).exact(result)
    return found


def print_of(value: Any, organization_id: UUID) -> str:
    """Return the fingerprint of a JSON value: of its text with sorted keys."""
    return fingerprint(organization_id, json.dumps(value, sort_keys=True, separators=(",", ":")))


def _masker(organization_id: UUID) -> Masker:
    return memory_of(str(organization_id)).masker()
