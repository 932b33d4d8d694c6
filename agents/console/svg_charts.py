"""Geometry of SVG charts.

A chart is `WIDTH` by `HEIGHT` units with y downwards; the page scales it. The page also has the
numbers as a table, so the image is hidden from screen readers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 600, 120
GAP = 0.2  # between bars, as a fraction of a step


@dataclass(frozen=True)
class ChartBarPart:
    """A part of a bar: its tone, its top, and its height."""

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
    """A line with gaps: SVG points of each piece, and isolated points."""

    pieces: tuple[str, ...]
    lone: tuple[tuple[float, float], ...]


def build_bars(stacks: Sequence[Sequence[tuple[str, int]]]) -> list[ChartBar]:
    """Return a bar for each stack of (tone, number), first part at the bottom."""
    highest = max((sum(number for _, number in stack) for stack in stacks), default=0) or 1
    step = WIDTH / max(len(stacks), 1)
    return [
        ChartBar(
            round((index + GAP / 2) * step, 2),
            round((1 - GAP) * step, 2),
            _build_bar_parts(stack, highest),
        )
        for index, stack in enumerate(stacks)
    ]


def build_curve(numbers: Sequence[float | None], highest: float) -> ChartCurve:
    """Return a line through the numbers, with gaps at None."""
    step = WIDTH / max(len(numbers), 1)
    pieces: list[list[tuple[float, float]]] = [[]]
    for index, number in enumerate(numbers):
        if number is None:
            pieces.append([])
            continue
        y = HEIGHT * (1 - number / (highest or 1))
        pieces[-1].append((round((index + 0.5) * step, 2), round(y, 2)))
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
