"""Strangers' JSON Schemas: judged once, and arguments checked against them within bounds.

Pure, and without a clock: what can't be checked within the inline bounds raises `NeedsConfinement`
here, and is checked by `mcp_servers.schema_worker` in a process that can be killed.
"""

from mcp_servers.schemas.checking import (
    InvalidArguments,
    NeedsConfinement,
    check_arguments,
    fit,
    violation,
)
from mcp_servers.schemas.judging import Judgement, judge

__all__ = [
    "InvalidArguments",
    "Judgement",
    "NeedsConfinement",
    "check_arguments",
    "fit",
    "judge",
    "violation",
]
