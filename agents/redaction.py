"""Redaction: what is kept of a call, without secrets; and what a call gives, without ours.

What is kept loses every stored secret of the organization, what is named like one and what looks
like one. A result that somebody works with loses the stored secrets only: whatever else it says
belongs to whoever asked.
"""

from typing import Any
from uuid import UUID

from agents.governance.snapshots import ServerFacts, Snapshot
from bonobot.lib.known_secrets import masker_at_hand, read_masker
from bonobot.lib.learning import memory_of
from bonobot.lib.masking import Masker, words_of
from bonobot.lib.runtime import runtime


async def prepare(snapshot: Snapshot) -> None:
    """See to it that the organization's secrets are known, beside the loop where they aren't."""
    organization_id, generation = snapshot.organization_id, snapshot.generation
    if masker_at_hand(organization_id, generation) is None:
        await runtime().orm(read_masker, organization_id, generation)


def kept(value: Any, organization_id: UUID, server: ServerFacts | None) -> Any:
    """Return a value as it may be kept; also what its own server holds that is no secret.

    Most hold nothing: then it is the value itself, after one look at all that it says.
    """
    masker = organization_masker(organization_id)
    words = words_of(value)
    held = server is not None and words and server.endpoint.masker.finds_known(words)
    if words is not None and not held and not masker.finds(words):
        return value
    if server is not None:
        value = server.endpoint.masker.exact(value)
    return masker.value(value)


def given(result: dict[str, Any], organization_id: UUID) -> dict[str, Any]:
    """Return a result without the stored secrets; the same object where it holds none."""
    masker = organization_masker(organization_id)
    words = words_of(result)
    if words is not None and not masker.finds_known(words):
        return result
    found: dict[str, Any] = masker.exact(result)
    return found


def organization_masker(organization_id: UUID) -> Masker:
    """Return what masks the organization's secrets; another one as soon as there are others."""
    return memory_of(str(organization_id)).masker()
