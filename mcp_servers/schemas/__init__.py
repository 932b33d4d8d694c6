"""Strangers' JSON Schemas: judged once, and arguments checked against them within bounds.

Pure, and without a clock: what can't be checked within the inline bounds raises `NeedsConfinement`
here, and is checked by `mcp_servers.schemas.subprocess_pool` in a process that can be killed.
"""

from mcp_servers.schemas.classify_schema import SchemaVerdict, classify_schema
from mcp_servers.schemas.validate_arguments import (
    ConfinementNeeded,
    InvalidArguments,
    check_arguments,
    find_violation,
    is_valid_for_schema,
)

__all__ = [
    "ConfinementNeeded",
    "InvalidArguments",
    "SchemaVerdict",
    "check_arguments",
    "classify_schema",
    "find_violation",
    "is_valid_for_schema",
]
