"""Interrupts: Ctrl-C while something is written that must be whole and known."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def later() -> Iterator[None]:
    """Let the block come to its end; raise KeyboardInterrupt afterwards if Ctrl-C was pressed.

    In the main thread only. A block that raises is not followed by the interrupt.
    """
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
