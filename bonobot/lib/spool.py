"""Celery's filesystem broker, made safe for a reader that comes while a message is being written.

Kombu's transport opens the message under its final name and then writes it. A worker that looks in
between takes an empty file, and dies of it. Here a message gets its name once it is whole. And
kombu's reads the folder anew for each message and each queue; here one look finds the messages of
all queues, and what was found is taken before the next.
"""

import os
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from time import monotonic, monotonic_ns
from typing import Any
from uuid import uuid4

from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps, loads

LOOK_AGAIN_S = 0.05


def messages(folder: str | Path) -> Iterator[tuple[str, Path]]:
    """Yield the messages in a folder, the oldest first, each behind the name of its queue."""
    for name in sorted(os.listdir(folder)):  # noqa: PTH208  # paths are dear here
        if name.endswith(".msg"):
            yield name.partition(".")[2].removesuffix(".msg"), Path(folder, name)


def writable(folder: Path) -> bool:
    """Tell whether messages can be put into a folder."""
    return os.access(folder, os.W_OK)


class Channel(filesystem.Channel):
    """The channel of kombu's transport, with other ways to put and to get."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Begin with nothing found."""
        super().__init__(*args, **kwargs)
        self._found: defaultdict[str, deque[Path]] = defaultdict(deque)
        self._looked = 0.0

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        """Take the oldest message of a queue, without waiting; raises `Empty`."""
        found = self._found[queue]
        if not found:
            self._look()
        while found:
            message = found.popleft()
            try:
                said = message.read_text(encoding="utf-8")
                message.unlink()  # whoever does this has the message
            except FileNotFoundError:
                continue  # another worker was first
            except OSError as error:
                raise ChannelError(f"Cannot read the message {str(message)!r}") from error
            return loads(said)
        raise Empty

    def _look(self) -> None:
        """Find the messages of all queues, unless others are left of a look a moment ago."""
        now = monotonic()
        if any(self._found.values()) and now - self._looked < LOOK_AGAIN_S:
            return
        self._looked = now
        for found in self._found.values():
            found.clear()
        for queue, message in messages(self.data_folder_in):
            self._found[queue].append(message)

    # kombu's classes disagree on the parameter's name
    def _put(  # type: ignore[override]
        self, queue: str, payload: dict[str, Any], **kwargs: Any
    ) -> None:
        """Write a message beside the queue, then give it the name that readers look for."""
        folder = Path(self.data_folder_out)
        name = f"{monotonic_ns() // 1_000_000}_{uuid4()}.{queue}.msg"
        whole, growing = folder / name, folder / f"{name}.part"
        try:
            growing.write_text(dumps(payload), encoding="utf-8")
            growing.replace(whole)
        except OSError as error:
            growing.unlink(missing_ok=True)
            raise ChannelError(f"Cannot write the message {str(whole)!r}") from error


class Transport(filesystem.Transport):
    """Kombu's transport with our channel."""

    Channel = Channel


def register() -> None:
    """Make `filesystem://` mean this transport."""
    TRANSPORT_ALIASES["filesystem"] = f"{__name__}:Transport"
