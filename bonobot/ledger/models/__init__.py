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
    BudgetCell,
    Counted,
    FlowCell,
    PermitRow,
    RateCell,
    Rollup,
    StoreLabel,
    Summary,
    Uncounted,
)

__all__ = [
    "TOOK",
    "AppendOnly",
    "AuditQuerySet",
    "AuditRow",
    "BudgetCell",
    "Checkpoint",
    "Counted",
    "FlowCell",
    "Head",
    "PermitRow",
    "RateCell",
    "Rollup",
    "StoreLabel",
    "Summary",
    "Uncounted",
    "Verification",
]
