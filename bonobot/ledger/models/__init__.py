"""Rows of the ledger: chain heads, audit rows, rollups of them, budget and rate cells.

They point to nothing: ids and names are copied, so history survives what it tells of. Audit rows
are only ever written by `store` (for the writer and for changes); through the ORM they are
read-only.
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
