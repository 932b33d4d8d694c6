"""Celery's filesystem broker, made safe for a reader that comes while a message is being written.

Kombu's transport opens the message under its final name and then writes it. A worker that looks in
between takes an empty file, and dies of it. Here a message gets its name once it is whole.
"""

from pathlib import Path
from time import monotonic_ns
from typing import Any
from uuid import uuid4

from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps


class Channel(filesystem.Channel):
    """The channel of kombu's transport, with another way to put."""

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
