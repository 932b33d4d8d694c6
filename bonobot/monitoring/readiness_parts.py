"""Parts of the readiness report that packages above add: `/readyz` asks for them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from bonobot.core.extension_points import ExtensionList

State = Literal["ok", "failed"]


@dataclass(frozen=True)
class ReadinessPart:
    """One part and its verdict."""

    name: str
    state: State
    detail: str


_probes: ExtensionList[Callable[[], ReadinessPart]] = ExtensionList()


def register_readiness_part(probe: Callable[[], ReadinessPart]) -> None:
    """Add a part; it may use the database, and is asked only while that answers."""
    _probes.register(probe)


def probe_registered_parts() -> Iterator[ReadinessPart]:
    """Yield the parts that packages above have."""
    for probe in _probes:
        yield probe()
