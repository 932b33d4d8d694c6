"""The filesystem broker; broker status and queue backlogs.

Kombu's filesystem transport creates a message under its final name before writing it, so a worker
may read an empty file and crash. Here a message is renamed when it is complete. Kombu also lists
the folder for each message and each queue; here one listing serves all queues.
"""

import os
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from queue import Empty
from time import monotonic, monotonic_ns
from typing import Any, NamedTuple
from uuid import uuid4

from django.conf import settings
from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps, loads

from bonobot.jobs.queues import NAMES, compute_message_age_s

LOOK_AGAIN_S = 0.05


def list_messages(folder: str | Path) -> Iterator[tuple[str, Path]]:
    """Yield the messages in a folder as (queue, path), the oldest first."""
    for name in sorted(os.listdir(folder)):  # noqa: PTH208  # creating paths is slow
        if name.endswith(".msg"):
            yield name.partition(".")[2].removesuffix(".msg"), Path(folder, name)


def is_writable(folder: Path) -> bool:
    """Return whether messages can be written to a folder."""
    return os.access(folder, os.W_OK)


class FilesystemBrokerChannel(filesystem.Channel):
    """Kombu's filesystem channel with safe writes and fewer folder listings."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Create the channel without known messages."""
        super().__init__(*args, **kwargs)
        self._found: defaultdict[str, deque[Path]] = defaultdict(deque)
        self._looked = 0.0

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        """Return and delete the oldest message of a queue; raises `Empty`."""
        found = self._found[queue]
        if not found:
            self._look()
        while found:
            message = found.popleft()
            try:
                said = message.read_text(encoding="utf-8")
                message.unlink()  # only one worker succeeds
            except FileNotFoundError:
                continue  # another worker was first
            except OSError as error:
                raise ChannelError(f"Cannot read the message {str(message)!r}") from error
            return loads(said)
        raise Empty

    def _look(self) -> None:
        """List the messages of all queues, unless some are left of a recent listing."""
        now = monotonic()
        if any(self._found.values()) and now - self._looked < LOOK_AGAIN_S:
            return
        self._looked = now
        for found in self._found.values():
            found.clear()
        for queue, message in list_messages(self.data_folder_in):
            self._found[queue].append(message)

    # kombu's classes disagree on the parameter's name
    def _put(  # type: ignore[override]
        self, queue: str, payload: dict[str, Any], **kwargs: Any
    ) -> None:
        """Write a message to a temporary file and rename it."""
        folder = Path(self.data_folder_out)
        name = f"{monotonic_ns() // 1_000_000}_{uuid4()}.{queue}.msg"
        whole, growing = folder / name, folder / f"{name}.part"
        try:
            growing.write_text(dumps(payload), encoding="utf-8")
            growing.replace(whole)
        except OSError as error:
            growing.unlink(missing_ok=True)
            raise ChannelError(f"Cannot write the message {str(whole)!r}") from error


class FilesystemBrokerTransport(filesystem.Transport):
    """Kombu's transport with our channel."""

    Channel = FilesystemBrokerChannel


def register() -> None:
    """Use this transport for `filesystem://`."""
    TRANSPORT_ALIASES["filesystem"] = f"{__name__}:FilesystemBrokerTransport"


ANSWER_S = 1.0


class BrokerUnreachable(Exception):
    """The broker doesn't answer."""


class QueueBacklog(NamedTuple):
    """The number of messages in a queue and the age of the oldest in seconds."""

    queue: str
    messages: int
    oldest_s: float


def ping() -> None:
    """Raise `BrokerUnreachable` unless the broker accepts messages."""
    if settings.REDIS_URL:
        _call_redis(lambda redis: redis.ping())
    elif not is_writable(_get_message_folder()):
        raise BrokerUnreachable


def list_queue_backlogs() -> list[QueueBacklog]:
    """Return the backlog of each queue; raises `BrokerUnreachable`."""
    return list(_read_redis_backlogs() if settings.REDIS_URL else _read_folder_backlogs())


def _read_redis_backlogs() -> Iterator[QueueBacklog]:
    prefix = f"{settings.BONOBOT_REDIS_PREFIX}:"

    def look(redis: Any) -> Any:
        asked = redis.pipeline(transaction=False)
        for name in NAMES:
            asked.llen(prefix + name)
            asked.lindex(prefix + name, -1)  # the oldest: Celery pushes left and pops right
        return asked.execute()

    found = iter(_call_redis(look))
    for name, messages, oldest in zip(NAMES, found, found, strict=True):
        yield QueueBacklog(
            name,
            messages,
            compute_message_age_s(loads(oldest).get("headers", {})) if oldest else 0.0,
        )


def _read_folder_backlogs() -> Iterator[QueueBacklog]:
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    for queue, message in list_messages(_get_message_folder()):
        try:
            found.get(queue, []).append(message.stat().st_mtime)
        except FileNotFoundError:
            continue  # taken meanwhile
    now = time.time()
    for name, written in found.items():
        yield QueueBacklog(name, len(written), max(now - min(written, default=now), 0.0))


def _get_message_folder() -> Path:
    return Path(settings.BONOBOT_VAR) / "broker" / "messages"


def _call_redis(what: Any) -> Any:
    from redis.exceptions import RedisError  # an extra

    try:
        return what(_connect_redis())
    except RedisError as error:
        raise BrokerUnreachable from error


@cache
def _connect_redis() -> Any:
    import redis  # an extra

    seconds = {"socket_timeout": ANSWER_S, "socket_connect_timeout": ANSWER_S}
    return redis.Redis.from_url(settings.REDIS_URL, **seconds)
