"""Actors, openings, admissions and settlements.

Amounts are integers in the unit named by their cell's key (tokens, micro-dollars, calls,
milliseconds), so sums are exact on every database.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, get_args
from uuid import UUID

from bonobot.core.records import record

ActorKind = Literal["user", "token", "cli", "session", "system", "gateway"]
ACTOR_KINDS: frozenset[str] = frozenset(get_args(ActorKind))


@dataclass(frozen=True, slots=True)
class Actor:
    """A person or program that acts: its kind, its id, and its name at that time."""

    kind: ActorKind
    id: str
    label: str

    def __post_init__(self) -> None:
        if self.kind not in ACTOR_KINDS:
            raise ValueError(f"`kind` must be one of {sorted(ACTOR_KINDS)}, not {self.kind!r}.")

    def __str__(self) -> str:
        return f"{self.kind}:{self.label or self.id}"


Outcome = Literal["ok", "error", "refused", "unknown", "cancelled"]
EVENT_TYPES = ("call", "model", "change", "approval", "connection")
OUTCOMES: frozenset[str] = frozenset(get_args(Outcome))

# The code of an entry about a call that waits for approval; the call itself gets another entry.
APPROVAL_REQUIRED_CODE = "approval_required"
# The codes of calls that a rule asked about, and that nobody approved.
NOT_APPROVED_CODES = ("approval_denied", "approval_expired")


def is_approval_request(outcome: str, code: str) -> bool:
    """Return whether an entry only requests approval: it counts neither as a call nor as denied."""
    return outcome == "refused" and code == APPROVAL_REQUIRED_CODE


class FlowLabel(StrEnum):
    """The parts of a data leak: private data, untrusted content, an external effect.

    `repeatable` means idempotent.
    """

    PRIVATE_DATA = "private_data"
    UNTRUSTED_CONTENT = "untrusted_content"
    SENDS_OUT = "sends_out"
    REPEATABLE = "repeatable"


# A thousand of these still fit a signed 64-bit column.
MAX_AMOUNT = 2**53


@record(kw_only=True)
class Opening:
    """The opening of an audit entry, of a call or an event: actor, action, target and decision."""

    call_id: UUID
    organization_id: UUID
    action: str
    event_type: str
    resource_type: str
    resource_id: str
    actor: Actor
    decision: str
    rule: str = ""
    code: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    resource_name: str = ""
    agent_id: UUID | None = None
    agent_name: str = ""
    server_id: UUID | None = None
    server_name: str = ""
    tool_name: str = ""
    session_id: UUID | None = None
    parent_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class BudgetReservation:
    """An amount reserved in a budget cell until settlement; only counted without a limit."""

    key: str
    limit: int | None
    amount: int

    def __post_init__(self) -> None:
        _check_amounts("amount", (self.amount,))
        if self.limit is not None and self.limit < 0:
            raise ValueError(f"`limit` must not be negative, it is {self.limit}.")


@dataclass(frozen=True, slots=True)
class RateCharge:
    """One use of a rate limit: `per_minute` on average, `burst` at once."""

    key: str
    per_minute: int
    burst: int
    cost: int = 1

    def __post_init__(self) -> None:
        if self.per_minute < 1 or not 0 <= self.cost <= self.burst or self.burst < 1:
            raise ValueError(
                "`per_minute` and `burst` must be 1 or more, `cost` between 0 and `burst`: "
                f"{self.per_minute}, {self.burst}, {self.cost}."
            )


def build_rate_prefix(organization_id: UUID) -> str:
    """Return the key prefix of an organization's own rates; other rates may be shared."""
    return f"rate:{organization_id}:"


@dataclass(frozen=True, slots=True)
class FlowLabelEffect:
    """The effect of a call on the labels (bits) that its caller holds; `key` names the caller.

    The call is refused if the caller already holds all of `blocking_labels`; otherwise it gets
    `added_labels`. Labels expire after `idle_s` without use; None means never.
    """

    key: str
    added_labels: int = 0
    blocking_labels: int = 0
    idle_s: int | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """A data store that a call reads or writes; `key` names it.

    Reading adds the store's labels to the caller, writing adds the caller's labels to the store.
    A store's labels never expire; they can only be cleared.
    """

    key: str
    reads: bool = True
    writes: bool = True


@dataclass(frozen=True, slots=True)
class ApprovalReference:
    """The one-time approval that a call uses, and the digest it must match."""

    id: UUID
    digest: str


@record()
class Admission:
    """A decided call that requests admission; `generation` is that of its policy snapshot.

    With an approval, flow labels don't block the call.
    """

    opening: Opening
    reservations: tuple[BudgetReservation, ...] = ()
    charges: tuple[RateCharge, ...] = ()
    generation: int | None = None
    flows: tuple[FlowLabelEffect, ...] = ()
    approval: ApprovalReference | None = None
    stores: tuple[Store, ...] = ()


@record()
class AdmissionResult:
    """The result for an admitted call: it is recorded, reserved and charged, and may run."""

    call_id: UUID
    seq: int
    generation: int


@record(kw_only=True)
class Settlement:
    """The outcome of a call, with an error code if it failed.

    `actuals` are (key, reserved, actual) for each reservation; `kind` is only used for metrics.
    """

    call_id: UUID
    organization_id: UUID
    outcome: Outcome
    duration_ms: int
    code: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    actuals: tuple[tuple[str, int, int], ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    kind: Literal["call", "model", "bot", "trigger"] = "call"

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"`outcome` must be one of {sorted(OUTCOMES)}, not {self.outcome!r}.")
        amounts = [self.duration_ms, self.input_tokens, self.output_tokens, self.cost_microusd]
        for _, reserved, actual in self.actuals:
            amounts += reserved, actual
        if min(amounts) < 0 or max(amounts) > MAX_AMOUNT:
            _check_amounts("amounts", amounts)


def _check_amounts(name: str, amounts: Iterable[int]) -> None:
    for amount in amounts:
        if not 0 <= amount <= MAX_AMOUNT:
            raise ValueError(f"`{name}` must be between 0 and {MAX_AMOUNT}, not {amount}.")
