"""Secrets out of arguments and results.

What is kept loses every stored secret of the organization, what is named like one and what looks
like one. A result that somebody works with loses the stored secrets only: whatever else it says
belongs to whoever asked.
"""

from typing import Any
from uuid import UUID

from agents.calls.snapshots import CallSnapshot, ServerFacts
from bonobot.core.crypto.organization_secrets import find_cached_masker, read_masker
from bonobot.core.runtime import get_runtime
from bonobot.core.text.masking import Masker, build_searchable_text, get_organization_secrets


async def prepare(snapshot: CallSnapshot) -> None:
    """See to it that the organization's secrets are known, beside the loop where they aren't."""
    organization_id, generation = snapshot.organization_id, snapshot.generation
    if find_cached_masker(organization_id, generation) is None:
        await get_runtime().orm(read_masker, organization_id, generation)


def redact_value(value: Any, organization_id: UUID, server: ServerFacts | None) -> Any:
    """Return a value as it may be kept; also what its own server holds that is no secret.

    Most hold nothing: then it is the value itself, after one look at all that it says.
    """
    masker = get_organization_masker(organization_id)
    words = build_searchable_text(value)
    held = server is not None and words and server.endpoint.masker.finds_known(words)
    if words is not None and not held and not masker.finds(words):
        return value
    if server is not None:
        value = server.endpoint.masker.exact(value)
    return masker.value(value)


def redact_result(result: dict[str, Any], organization_id: UUID) -> dict[str, Any]:
    """Return a result without the stored secrets; the same object where it holds none."""
    masker = get_organization_masker(organization_id)
    words = build_searchable_text(result)
    if words is not None and not masker.finds_known(words):
        return result
    found: dict[str, Any] = masker.exact(result)
    return found


def get_organization_masker(organization_id: UUID) -> Masker:
    """Return what masks the organization's secrets; another one as soon as there are others."""
    return get_organization_secrets(str(organization_id)).masker()
