"""Arguments of calls for the audit log."""

from typing import Any
from uuid import UUID

from agents.calls.redaction import redact_value
from agents.calls.snapshots import ServerFacts
from bonobot.core.crypto.signatures import compute_fingerprint
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json, to_sorted_json
from bonobot.core.text.untrusted_text import make_storable

MAX_ARGUMENTS_LENGTH = 16_384  # characters


def build_audited_arguments(
    arguments: dict[str, Any], organization_id: UUID, server: ServerFacts | None = None
) -> dict[str, Any]:
    """Return the masked arguments, at most 16,384 characters, and their fingerprint."""
    masked = redact_value(arguments, organization_id, server)
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
