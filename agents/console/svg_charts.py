"""Numbers over time as SVG.

Pure. A chart is `WIDTH` by `HEIGHT` units, y downwards; the page stretches it. What it shows is
told beside it as a table, so the picture itself is hidden from readers of text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 600, 120
GAP = 0.2  # of a step, between bars


@dataclass(frozen=True)
class ChartBarPart:
    """A piece of a bar: its tone, its place from the top, and its height."""

    tone: str
    y: float
    height: float


@dataclass(frozen=True)
class ChartBar:
    """A bar of stacked parts."""

    x: float
    width: float
    parts: tuple[ChartBarPart, ...]


@dataclass(frozen=True)
class ChartCurve:
    """A line with gaps: the points of each piece as SVG has them, and those that stand alone."""

    pieces: tuple[str, ...]
    lone: tuple[tuple[float, float], ...]


def build_bars(stacks: Sequence[Sequence[tuple[str, int]]]) -> list[ChartBar]:
    """Return a bar for each stack of (tone, number), the first part at the bottom."""
    highest = max((sum(number for _, number in stack) for stack in stacks), default=0) or 1
    step = WIDTH / max(len(stacks), 1)
    return [
        ChartBar(
            round((place + GAP / 2) * step, 2),
            round((1 - GAP) * step, 2),
            _build_bar_parts(stack, highest),
        )
        for place, stack in enumerate(stacks)
    ]


def build_curve(numbers: Sequence[float | None], highest: float) -> ChartCurve:
    """Return a line through the numbers; where there is none it has a gap."""
    step = WIDTH / max(len(numbers), 1)
    pieces: list[list[tuple[float, float]]] = [[]]
    for place, number in enumerate(numbers):
        if number is None:
            pieces.append([])
            continue
        y = HEIGHT * (1 - number / (highest or 1))
        pieces[-1].append((round((place + 0.5) * step, 2), round(y, 2)))
    return ChartCurve(
        tuple(" ".join(f"{x},{y}" for x, y in piece) for piece in pieces if len(piece) > 1),
        tuple(piece[0] for piece in pieces if len(piece) == 1),
    )


def _build_bar_parts(stack: Sequence[tuple[str, int]], highest: int) -> tuple[ChartBarPart, ...]:
    parts, base = [], float(HEIGHT)
    for tone, number in stack:
        if number:
            height = HEIGHT * number / highest
            base -= height
            parts.append(ChartBarPart(tone, round(base, 2), round(height, 2)))
    return tuple(parts)
