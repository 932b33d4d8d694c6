"""What a session does, in a terminal: what is settled is printed, what isn't moves below it.

Calls are blocks that are shown short: `/show` in a chat shows one whole. Models' and servers' texts
are a stranger's: what can't be seen is made visible, and links show where they lead.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Group, RenderableType
from rich.json import JSON
from rich.live import Live
from rich.markdown import Markdown
from rich.padding import Padding
from rich.spinner import Spinner
from rich.text import Text

from agents.models import Step
from agents.sessions.events import PROGRESS, TEXT, Event
from bonobot.cli.group import Cli
from bonobot.lib.untrusted import visible

# Of a call's arguments and of its result, where it is shown short.
LINES, CHARACTERS = 12, 2_000
MARKS = {"done": ("✓", "green"), "unknown": ("?", "yellow")}
# Rows of the terminal that are kept free below a growing text.
BELOW = 6


class Drawing:
    """Draws the events of one session; `after` is the last step that it has drawn for good.

    `answers`: models' texts are drawn too; who prints the answer at the end leaves them out.
    """

    def __init__(self, cli: Cli, *, answers: bool, after: int = 0) -> None:
        self.after = after
        self._cli = cli
        self._answers = answers
        self._open: dict[int, dict[str, Any]] = {}
        self._drawn: set[int] = set()
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Have what isn't settled shown at the bottom of a terminal, until this ends."""
        self._open.clear()
        if self._cli.as_json or not self._cli.out.is_terminal:
            yield
            return
        with Live(console=self._cli.out, transient=True, refresh_per_second=8) as self._live:
            self._refresh()
            try:
                yield
            finally:
                self._live.update(Text(""))
        self._live = None

    def take(self, events: list[Event]) -> None:
        """Draw what is new."""
        for event in events:
            self._take(event)
        if self._live is not None and events:
            self._refresh()

    def _take(self, event: Event) -> None:
        data = event.data
        if event.kind == TEXT:
            step = self._open.get(data["seq"])
            if step is not None:
                step["text"] = step.get("text", "")[: data["at"]] + data["text"]
        elif event.kind == PROGRESS:
            self._open.get(data["seq"], {})["progress"] = data
        elif "seq" in data:
            self._step(event)

    def _step(self, event: Event) -> None:
        seq, data = event.data["seq"], event.data
        if event.id is not None:
            self.after = event.id
        if data["state"] == Step.State.INTENT:
            self._open[seq] = dict(data)
            return
        self._open.pop(seq, None)
        if seq not in self._drawn:
            self._drawn.add(seq)
            self._settled(data)

    def _settled(self, data: dict[str, Any]) -> None:
        if self._cli.as_json:
            return
        if data["kind"] == Step.Kind.CALL:
            self._cli.out.print(block(data))
        elif data["kind"] == Step.Kind.NOTICE:
            self._cli.out.print(f"! {visible(data['text'])}", style="yellow", markup=False)
        elif self._answers and data["kind"] == Step.Kind.MODEL and data.get("text", "").strip():
            self._cli.out.print(said(data["text"], formatted=self._cli.out.is_terminal))

    def _refresh(self) -> None:
        if self._live is not None:
            parts = [part for _, step in sorted(self._open.items()) for part in self._moving(step)]
            self._live.update(Group(*(parts or [Spinner("dots", "The agent is working …")])))

    def _moving(self, step: dict[str, Any]) -> Iterator[RenderableType]:
        if step["kind"] == Step.Kind.CALL:
            yield Spinner("dots", _running(step))
        elif text := step.get("text", ""):
            end = "\n".join(text.splitlines()[-max(4, self._cli.out.height - BELOW) :])
            yield said(end, formatted=True)
        else:
            yield Spinner("dots", "The agent is thinking …")


def block(data: dict[str, Any], *, whole: bool = False) -> RenderableType:
    """Return a finished call: what it was given and what came of it, short or whole."""
    mark = MARKS.get(data["state"], ("✗", "red"))
    took = f" {data['duration_ms']} ms" if data.get("duration_ms") is not None else ""
    code = f" {data['code']}" if data.get("code") else ""
    name = visible(data.get("name", ""), 120)
    head = Text.assemble(mark, f" {name}", (f"{took}{code} #{data['seq']}", "dim"))
    parts: list[RenderableType] = [head]
    if data.get("arguments"):
        written = json.dumps(data["arguments"], indent=2, ensure_ascii=False)
        parts.append(_piece(written, whole))
    if data.get("text"):
        parts.append(_piece(data["text"], whole))
    return Group(*parts)


def said(text: str, *, formatted: bool) -> RenderableType:
    """Return what a model wrote: formatted as Markdown, or as it is."""
    if not formatted:
        return Text(visible(text))
    # Links show their address: what they are called is the writer's choice.
    return Markdown(visible(text), hyperlinks=False)


def _piece(text: str, whole: bool) -> RenderableType:
    shown, left = visible(text), 0
    with suppress(ValueError):
        shown = visible(json.dumps(json.loads(text), indent=2, ensure_ascii=False))
    if not whole:
        lines = shown.splitlines()
        left = len(lines) - LINES
        shown = visible("\n".join(lines[:LINES]), CHARACTERS)
    more = [Text(f"… {left} more lines", style="dim")] if left > 0 else []
    return Padding(Group(_coloured(shown), *more), (0, 4))


def _coloured(text: str) -> RenderableType:
    try:
        return JSON(text)
    except ValueError:
        return Text(text, style="dim")


def _running(step: dict[str, Any]) -> Text:
    name = visible(step.get("name", ""), 120)
    progress = step.get("progress") or {}
    if not progress:
        return Text(name)
    total = f" / {progress['total']:g}" if progress.get("total") else ""
    said_of_it = visible(progress.get("message", ""), 120)
    return Text.assemble(name, (f" {said_of_it} {progress['done']:g}{total}", "dim"))
