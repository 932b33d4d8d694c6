"""Geometry of SVG charts.

A chart is `WIDTH` by `HEIGHT` units with y downwards; the page scales it. The page also has the
numbers as text, so the image is hidden from screen readers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

WIDTH, HEIGHT = 100, 100
GAP = 0.3  # between bars, as a fraction of a step
AXIS_INTERVALS = 4
AXIS_STEPS = (1, 2, 2.5, 5, 10)
MAX_TIME_LABELS = 8
SPARK_WIDTH, SPARK_HEIGHT, SPARK_MARGIN = 100, 28, 2


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
class ChartLabel:
    """A label of the time axis, and where it starts, in percent of the width."""

    text: str
    at: float


@dataclass(frozen=True)
class Sparkline:
    """A line without an axis: SVG points of the line, and of the area below it."""

    line: str
    area: str


@dataclass(frozen=True)
class ChartValue:
    """A value of a column with its title; `tone` is the color of its part of the bar."""

    title: Any
    text: str
    tone: str = ""


@dataclass(frozen=True)
class ChartColumn:
    """A bar with its rows' URL, and the values that are shown when the pointer is on it."""

    bar: ChartBar
    title: str
    url: str
    values: tuple[ChartValue, ...]


@dataclass(frozen=True)
class Chart:
    """Bars over time, with the labels of both axes; see `admin/parts/chart.html`.

    `limit_at` is how far from the top a line for a limit is, in percent; None without a limit.
    `legend` has the tone and title of each part of stacked bars.
    """

    title: Any
    axis: list[str]
    columns: list[ChartColumn]
    labels: list[ChartLabel]
    limit_at: float | None = None
    limit_text: str = ""
    legend: tuple[tuple[str, Any], ...] = ()


def choose_axis(highest: int) -> list[int]:
    """Return the labels of an axis that `highest` fits on, the top one first, in round steps."""
    magnitude = 1
    while True:
        for factor in AXIS_STEPS:
            step = factor * magnitude
            if step == ceil(step) and step * AXIS_INTERVALS >= highest:
                return [int(step) * number for number in range(AXIS_INTERVALS, -1, -1)]
        magnitude *= 10


def build_bars(stacks: Sequence[Sequence[tuple[str, int]]], highest: int) -> list[ChartBar]:
    """Return a bar for each stack of (tone, number), first part at the bottom.

    A bar with the number `highest` (not 0) is as high as the chart.
    """
    step = WIDTH / max(len(stacks), 1)
    return [
        ChartBar(
            round((index + GAP / 2) * step, 2),
            round((1 - GAP) * step, 2),
            _build_bar_parts(stack, highest),
        )
        for index, stack in enumerate(stacks)
    ]


def place_labels(texts: Sequence[str]) -> list[ChartLabel]:
    """Return the labels of as many bars, as few as fit; none so far right that it is cut off."""
    every = -(-len(texts) // MAX_TIME_LABELS)
    return [
        ChartLabel(text, 100 * index / len(texts))
        for index, text in enumerate(texts)
        if index % every == 0 and index < 0.95 * len(texts)
    ]


def build_sparkline(numbers: Sequence[float | None]) -> Sparkline | None:
    """Return a line through the numbers, straight over those that are None; None without any."""
    known = [(index, number) for index, number in enumerate(numbers) if number is not None]
    if len(known) < 2:
        return None
    values = [number for _, number in known]
    lowest, span = min(0, *values), max(values) - min(0, *values)
    height = SPARK_HEIGHT - 2 * SPARK_MARGIN
    points = []
    for index, number in known:
        x = SPARK_WIDTH * index / (len(numbers) - 1)
        y = SPARK_MARGIN + height * (1 - (number - lowest) / (span or 1))
        points.append(f"{x:.1f},{y:.1f}")
    first_x, last_x = points[0].partition(",")[0], points[-1].partition(",")[0]
    line = " ".join(points)
    return Sparkline(line, f"{first_x},{SPARK_HEIGHT} {line} {last_x},{SPARK_HEIGHT}")


def _build_bar_parts(stack: Sequence[tuple[str, int]], highest: int) -> tuple[ChartBarPart, ...]:
    parts, base = [], float(HEIGHT)
    for tone, number in stack:
        if number:
            height = HEIGHT * number / highest
            base -= height
            parts.append(ChartBarPart(tone, round(base, 2), round(height, 2)))
    return tuple(parts)
