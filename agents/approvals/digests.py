"""The digests that bind an approval to its call."""

from typing import Any
from uuid import UUID

from bonobot.core.crypto.signatures import compute_fingerprint
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json


def compute_arguments_digest(organization_id: UUID, arguments: Any) -> str:
    # Keyed, so that short secrets in arguments can't be found by brute force.
    return compute_fingerprint(organization_id, to_canonical_json(arguments))


def compute_call_digest(
    *,
    requester: str,
    agent_id: UUID | None,
    server_id: UUID | None,
    method: str,
    tool: str,
    uri: str,
    arguments: str,
    definition: str,
    rules: str,
) -> str:
    """Return the digest of a call; `requester` is its session, or `kind:id` of its caller."""
    canonical_call = to_canonical_json(
        {
            "who": requester,
            "agent": str(agent_id or ""),
            "server": str(server_id or ""),
            "method": method,
            "tool": tool,
            "uri": uri,
            "arguments": arguments,
            "definition": definition,
            "rules": rules,
        }
    )
    return compute_digest(canonical_call)
