"""Mask secrets in arguments and results.

Stored values lose the organization's secrets and everything that is named or looks like a secret.
Results returned to callers only lose the organization's secrets.
"""

from typing import Any
from uuid import UUID

from agents.calls.definitions import ServerFacts
from agents.calls.snapshots import CallSnapshot
from bonobot.core.crypto.organization_secrets import load_masker
from bonobot.core.crypto.signatures import compute_fingerprint
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import (
    compute_digest,
    format_uuid,
    to_canonical_json,
    to_sorted_json,
)
from bonobot.core.text.masking import (
    Masker,
    SearchableText,
    build_searchable_text,
    get_organization_secrets,
)
from bonobot.core.text.untrusted_text import make_storable

MAX_ARGUMENTS_LENGTH = 16_384  # characters in the audit log


async def ensure_masker_loaded(snapshot: CallSnapshot) -> Masker:
    """Return the masker for the organization's secrets; load them unless they are cached."""
    organization_id, generation = snapshot.organization_id, snapshot.generation
    secrets = get_organization_secrets(format_uuid(organization_id))
    masker = secrets.find_current_masker(generation)
    if masker is None:
        masker = await get_runtime().run_orm(load_masker, organization_id, generation)
    return masker


def redact_value(
    value: Any, organization_id: UUID, server: ServerFacts | None, masker: Masker | None = None
) -> Any:
    """Return a value that is safe to store; also masks the server's own configured values.

    `masker` is the organization's if the caller has it. Returns the same object if nothing has to
    be masked.
    """
    masker = masker or get_organization_secrets(format_uuid(organization_id)).get_masker()
    searchable_text = build_searchable_text(value)
    has_server_values = (
        server is not None
        and searchable_text
        and server.endpoint.masker.may_mask_known(searchable_text)
    )
    if (
        searchable_text is not None
        and not has_server_values
        and not masker.may_mask(searchable_text)
    ):
        return value
    if server is not None:
        value = server.endpoint.masker.mask_known(value)
    return masker.mask_value(value)


def build_audited_arguments(
    arguments: dict[str, Any],
    organization_id: UUID,
    server: ServerFacts | None = None,
    masker: Masker | None = None,
) -> dict[str, Any]:
    """Return the masked arguments, at most 16,384 characters, and their fingerprint."""
    masked = redact_value(arguments, organization_id, server, masker)
    try:
        text = to_canonical_json(masked)
    except ValueError:  # clients send numbers that JSON can't represent
        masked = make_storable(masked)
        text = to_canonical_json(masked)
    serialized = text if masked is arguments else to_sorted_json(arguments)
    if len(text) > MAX_ARGUMENTS_LENGTH:
        masked = {
            "truncated": text[:MAX_ARGUMENTS_LENGTH],
            "sha256": compute_digest(text),
            "length": len(text),
        }
    return {"arguments": masked, "input_sha256": compute_fingerprint(organization_id, serialized)}


def redact_result(
    result: dict[str, Any], organization_id: UUID, searchable_text: SearchableText | None = None
) -> dict[str, Any]:
    """Return a result with stored secrets masked; the same object if it has none.

    `searchable_text` is that of the result if the caller has it.
    """
    masker = get_organization_secrets(format_uuid(organization_id)).get_masker()
    searchable_text = searchable_text or build_searchable_text(result)
    if searchable_text is not None and not masker.may_mask_known(searchable_text):
        return result
    redacted: dict[str, Any] = masker.mask_known(result)
    return redacted
