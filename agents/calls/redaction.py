"""Mask secrets in arguments and results.

Stored values lose the organization's secrets and everything that is named or looks like a secret.
Results returned to callers only lose the organization's secrets.
"""

from typing import Any
from uuid import UUID

from agents.calls.snapshots import CallSnapshot, ServerFacts
from bonobot.core.crypto.organization_secrets import find_cached_masker, read_masker
from bonobot.core.runtime import get_runtime
from bonobot.core.text.masking import Masker, build_searchable_text, get_organization_secrets


async def prepare(snapshot: CallSnapshot) -> None:
    """Load the organization's secrets unless they are cached."""
    organization_id, generation = snapshot.organization_id, snapshot.generation
    if find_cached_masker(organization_id, generation) is None:
        await get_runtime().orm(read_masker, organization_id, generation)


def redact_value(value: Any, organization_id: UUID, server: ServerFacts | None) -> Any:
    """Return a value that is safe to store; also masks the server's own configured values.

    Returns the same object if nothing has to be masked.
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
    """Return a result with stored secrets masked; the same object if it has none."""
    masker = get_organization_masker(organization_id)
    words = build_searchable_text(result)
    if words is not None and not masker.finds_known(words):
        return result
    found: dict[str, Any] = masker.exact(result)
    return found


def get_organization_masker(organization_id: UUID) -> Masker:
    """Return the masker for the organization's current secrets."""
    return get_organization_secrets(str(organization_id)).masker()
