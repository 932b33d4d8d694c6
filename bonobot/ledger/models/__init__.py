"""Models of the ledger: chain heads, audit rows, rollups, budget and rate cells.

They have no foreign keys: ids and names are copied, so history survives deleted objects. Audit rows
are only written by `writer.sql`; through the ORM they are read-only.
"""

from bonobot.ledger.models.audit import (
    AppendOnly,
    AuditQuerySet,
    AuditRow,
    Checkpoint,
    Head,
    Verification,
)
from bonobot.ledger.models.usage import (
    TOOK,
    ApprovalCell,
    BudgetCell,
    FlowCell,
    RateCell,
    Rollup,
    RollupCursor,
    StoreLabel,
    Summary,
    UncountedEntry,
)

__all__ = [
    "TOOK",
    "AppendOnly",
    "ApprovalCell",
    "AuditQuerySet",
    "AuditRow",
    "BudgetCell",
    "Checkpoint",
    "FlowCell",
    "Head",
    "RateCell",
    "Rollup",
    "RollupCursor",
    "StoreLabel",
    "Summary",
    "UncountedEntry",
    "Verification",
]
