"""Extension point for parts of the readiness report."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from bonobot.core.extension_points import ExtensionList

State = Literal["ok", "failed"]


@dataclass(frozen=True)
class ReadinessPart:
    """A part of the report and its state."""

    name: str
    state: State
    detail: str


_probes: ExtensionList[Callable[[], ReadinessPart]] = ExtensionList()


def register_readiness_part(probe: Callable[[], ReadinessPart]) -> None:
    """Register a probe; it may use the database and is called only if that is reachable."""
    _probes.register(probe)


def probe_registered_parts() -> Iterator[ReadinessPart]:
    """Yield the results of the registered probes."""
    for probe in _probes:
        yield probe()
