"""Celery's filesystem broker, made safe for a reader that comes while a message is being written.

Kombu's transport opens the message under its final name and then writes it. A worker that looks in
between takes an empty file, and dies of it. Here a message gets its name once it is whole. And
kombu's reads the folder anew for each message; here what was found is taken before it looks again.
"""

import os
from collections import deque
from pathlib import Path
from queue import Empty
from time import monotonic_ns
from typing import Any
from uuid import uuid4

from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps, loads


class Channel(filesystem.Channel):
    """The channel of kombu's transport, with other ways to put and to get."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Begin with nothing found."""
        super().__init__(*args, **kwargs)
        self._found: dict[str, deque[Path]] = {}

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        """Take the oldest message of a queue, without waiting; raises `Empty`."""
        found = self._found.setdefault(queue, deque())
        if not found:
            names = os.listdir(self.data_folder_in)  # noqa: PTH208  # a path for each is dear here
            mine = sorted(name for name in names if name.partition(".")[2] == f"{queue}.msg")
            found.extend(Path(self.data_folder_in, name) for name in mine)
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
