"""`CallContext`: what is known about one call, from its request to its outcome."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from agents.budgets.limits import BudgetLimit
from agents.calls.definitions import ServerFacts
from agents.calls.result_text import ResultText
from agents.calls.snapshots import CallSnapshot, Target
from agents.calls.types import CallRequest
from agents.policies.decisions import PolicyDecision
from bonobot.core.text.masking import Masker
from bonobot.ledger.types import Admission, ApprovalReference
from bonobot.ledger.types import Outcome as LedgerOutcome
from mcp_servers.schemas.classify_schema import ValueSize

NO_TEXT = ResultText("")


@dataclass(frozen=True, slots=True)
class ApprovalGrant:
    """An approval for this one call, or None if the tool is approved for the session."""

    approval: ApprovalReference | None = None


@dataclass(slots=True, eq=False)
class CallContext:
    """One call: `make_call` creates it, and each stage adds what later stages need.

    `request` is the caller's, with the principal and the tool's listed name as of the snapshot.
    """

    request: CallRequest
    # Set by `prepare_call`; a newer snapshot replaces it and what was resolved with it.
    snapshot: CallSnapshot = field(init=False)
    # The organization's secrets as of then.
    masker: Masker = field(init=False)
    # Set by `resolve_target`; `server` and `deadline_ms` stay empty for built-in tools.
    is_resolved: bool = False
    target: Target = field(init=False)
    server: ServerFacts | None = None
    deadline_ms: int = 0
    # Set by `check_call_arguments`.
    arguments_size: ValueSize | None = None
    # Set by `decide_call` and for a decision that needs a person.
    decision: PolicyDecision = field(init=False)
    grant: ApprovalGrant | None = None
    root_limits: tuple[BudgetLimit, ...] = ()
    admission: Admission = field(init=False)
    # Set by the stages after the admission; until something else is known, it was canceled.
    outcome: LedgerOutcome = "unknown"
    code: str = "cancelled"
    result_text: ResultText = NO_TEXT
    result: dict[str, Any] = field(default_factory=dict)
    audit_details: dict[str, Any] = field(default_factory=dict)
    remedy: str = ""
    cause: str = ""
    # Set by `forward_call` before the server, or the built-in tool, can receive the call.
    sent: bool = False
    answered: bool = False
    duration_ms: int = 0
    # About how many characters the result has; 0 if it wasn't inspected.
    result_size: int = 0
    # Whether it is known to have no hidden characters.
    is_visible: bool = False
    pending_call_id: UUID | None = None
    error: dict[str, Any] | None = None
    amounts: dict[str, int] = field(default_factory=dict)
