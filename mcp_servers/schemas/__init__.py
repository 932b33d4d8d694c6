"""Untrusted JSON Schemas: classify them once, and check arguments against them within limits.

Pure: checks that exceed the inline limits raise `SubprocessNeeded`, and are done by
`mcp_servers.schemas.subprocess_pool` in a process that can be killed.
"""

from mcp_servers.schemas.classify_schema import SchemaVerdict, classify_schema
from mcp_servers.schemas.validate_arguments import (
    InvalidArguments,
    SubprocessNeeded,
    check_arguments,
    find_violation,
    is_valid_for_schema,
)

__all__ = [
    "InvalidArguments",
    "SchemaVerdict",
    "SubprocessNeeded",
    "check_arguments",
    "classify_schema",
    "find_violation",
    "is_valid_for_schema",
]
