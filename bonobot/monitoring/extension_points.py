"""What upper packages register for monitoring: gauges of rows, parts of the readiness report."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from django.utils import timezone

from bonobot.core.extension_points import ExtensionList

WAITING, WAITING_SECONDS = "bonobot_waiting", "bonobot_waiting_seconds"
LEASES = "bonobot_leases"
State = Literal["ok", "failed"]


@dataclass(frozen=True, slots=True)
class GaugeFamily:
    """A gauge: its name, help text and label names."""

    name: str
    text: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GaugeSample:
    """A value of a gauge with its label values."""

    name: str
    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class RowGauges:
    """The gauges of a package and the function that reads their samples from rows."""

    families: tuple[GaugeFamily, ...]
    collect: Callable[[], Iterable[GaugeSample]]


row_gauges: ExtensionList[Callable[[], RowGauges]] = ExtensionList()


def build_backlog_samples(
    queue: str, count: int, oldest_at: datetime | None
) -> Iterator[GaugeSample]:
    """Yield the number of waiting items of a queue and the age of the oldest in seconds."""
    now = timezone.now()
    yield GaugeSample(WAITING, (queue,), count)
    wait_s = max((now - (oldest_at or now)).total_seconds(), 0)
    yield GaugeSample(WAITING_SECONDS, (queue,), wait_s)


def build_lease_samples(kind: str, count: int, expired: int) -> Iterator[GaugeSample]:
    """Yield how many leases of a kind are held and how many have expired."""
    yield GaugeSample(LEASES, (kind, "held"), count - expired)
    yield GaugeSample(LEASES, (kind, "lapsed"), expired)


@dataclass(frozen=True)
class ReadinessPart:
    """A part of the report and its state."""

    name: str
    state: State
    detail: str


# Probes may use the database and are called only if it is reachable.
readiness_parts: ExtensionList[Callable[[], ReadinessPart]] = ExtensionList()
