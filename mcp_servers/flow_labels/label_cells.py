"""The keys of flow labels in the ledger."""

from functools import lru_cache
from typing import Literal
from uuid import UUID

# A `text` is a name, a configuration or instructions.
HolderKind = Literal["session", "agent", "token", "server", "text"]


@lru_cache(maxsize=4096)
def build_flow_key(organization_id: UUID | str, kind: HolderKind, row_id: UUID | str) -> str:
    """Return the ledger key of the labels that a row holds."""
    return f"flow:{organization_id}:{kind}:{row_id}"
