"""Dimensions: what rollups come to by agent, server, tool, model or reason alone, and in all.

Pure. Rollups tell all of these apart at once, so an organization with thousands of agents has
nearly as many of them as calls. A summary is of one dimension: as many rows an hour or a day as
there are agents (or tools) that did something in it, and for the total two.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from bonobot.ledger.rollups import BUCKETS, Kind, Place, Sum, quantile

ERRORS = ("error", "unknown")
COUNTS = (
    *("calls", "ok", "errors", "refused", "turns"),
    *("input_tokens", "output_tokens", "cost_microusd"),
)
# Names come along with ids: what was called so last.
NAMES = {"agent_id": "agent_name", "server_id": "server_name"}


class Dimension(NamedTuple):
    """What summaries are by (its columns), and which rows of the audit they are of alone."""

    name: str
    columns: tuple[str, ...]
    of: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of names that come along."""
        return tuple(NAMES[column] for column in self.columns if column in NAMES)

    def holds(self, kind: Kind) -> bool:
        """Tell whether it counts what is of this kind."""
        return all(getattr(kind, name) == value for name, value in self.of.items())

    def tells(self, by: Iterable[str], where: Mapping[str, Any]) -> bool:
        """Tell whether a report by these columns, of these rows, can be read from it."""
        known = {*self.columns, "begins", "organization_id"}
        apart = {name: value for name, value in where.items() if name not in self.of}
        return (
            known.issuperset(by)
            and known.union(self.names).issuperset(apart)
            and all(where.get(name) == value for name, value in self.of.items())
        )


CALLS = {"event_type": "call"}
# From the fewest rows to the most: a report is read from the first that tells it.
DIMENSIONS = (
    Dimension("total", ("event_type",), {}),
    Dimension("reason", ("code", "rule"), {**CALLS, "outcome": "refused"}),
    Dimension("model", ("model",), {"event_type": "model"}),
    Dimension("server", ("server_id",), CALLS),
    Dimension("agent", ("agent_id",), {}),
    Dimension("tool", ("server_id", "tool_name"), CALLS),
)


@dataclass(slots=True)
class Line:
    """What one line of a report says; `took` are the durations of calls that went well."""

    calls: int = 0
    ok: int = 0
    errors: int = 0
    refused: int = 0
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    took: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    agent_name: str = ""
    server_name: str = ""

    def add(self, other: "Line") -> None:
        """Add another line."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.took = [here + more for here, more in zip(self.took, other.took, strict=True)]
        self.agent_name = other.agent_name or self.agent_name
        self.server_name = other.server_name or self.server_name

    @property
    def p50(self) -> float | None:
        """The median duration in milliseconds."""
        return quantile(self.took, 0.5)

    @property
    def p95(self) -> float | None:
        """The 95th percentile in milliseconds."""
        return quantile(self.took, 0.95)

    @property
    def tokens(self) -> int:
        """All tokens, in and out."""
        return self.input_tokens + self.output_tokens


class Spot(NamedTuple):
    """One summary: of which dimension and subject, and when."""

    dimension: Dimension
    kind: Kind
    grain: str
    begins: datetime
    subject: UUID


def line_of(kind: Kind, total: Sum) -> Line:
    """Return what a sum says in a report."""
    call, outcome = kind.event_type == "call", kind.outcome
    return Line(
        calls=total.calls * call,
        ok=total.calls * (call and outcome == "ok"),
        errors=total.calls * (call and outcome in ERRORS),
        refused=total.calls * (call and outcome == "refused"),
        turns=total.calls * (not call and outcome != "refused"),
        input_tokens=total.input_tokens,
        output_tokens=total.output_tokens,
        cost_microusd=total.cost_microusd,
        took=list(total.took) if call and outcome == "ok" else [0] * BUCKETS,
        agent_name=total.agent_name,
        server_name=total.server_name,
    )


def summarize(
    sums: Mapping[Place, Sum], wanted: Callable[[Place], bool]
) -> Iterator[tuple[Spot, Line]]:
    """Yield what the wanted sums come to by each dimension, each spot once."""
    found: dict[tuple[Any, ...], tuple[Spot, Line]] = {}
    for place, total in sums.items():
        if not wanted(place):
            continue
        line = line_of(place.kind, total)
        for dimension in DIMENSIONS:
            if not dimension.holds(place.kind):
                continue
            values = tuple(getattr(place.kind, name) for name in dimension.columns)
            key = (dimension.name, place.grain, place.begins, values)
            if key not in found:
                subject = subject_of(values)
                spot = Spot(dimension, place.kind, place.grain, place.begins, subject)
                found[key] = (spot, Line())
            found[key][1].add(line)
    yield from found.values()


def subject_of(values: Sequence[object]) -> UUID:
    """Return what stands for the values of a dimension's columns; `summing` does it in SQL, too."""
    parts = [one.hex if isinstance(one, UUID) else str(one or "") for one in values]
    text = ":".join(parts).encode("utf-8", "surrogatepass")
    return UUID(sha256(text).hexdigest()[:32])
