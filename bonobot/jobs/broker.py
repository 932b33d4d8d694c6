"""The filesystem broker; broker status and queue backlogs.

Kombu's filesystem transport creates a message under its final name before writing it, so a worker
may read an empty file and crash. Here a message is renamed when it is complete. Kombu also lists
the folder for each message and each queue; here one listing serves all queues.
"""

import os
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from time import monotonic, monotonic_ns
from typing import Any, NamedTuple
from uuid import uuid4

from django.conf import settings
from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps, loads

from bonobot.core.process_cache import compute_once
from bonobot.jobs.queues import QUEUE_NAMES, compute_message_age_s

RESCAN_INTERVAL_S = 0.05
# A worker waits no longer for messages, because meanwhile it doesn't notice that it has to stop.
MAX_WAIT_S = 0.2
REDIS_TIMEOUT_S = 1.0


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
        self._messages: defaultdict[str, deque[Path]] = defaultdict(deque)
        self._scanned_at = 0.0

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        """Return and delete the oldest message of a queue; raises `Empty`."""
        messages = self._messages[queue]
        if not messages:
            self._scan_messages()
        while messages:
            message = messages.popleft()
            try:
                payload = message.read_text(encoding="utf-8")
                message.unlink()  # only one worker succeeds
            except FileNotFoundError:
                continue  # another worker was first
            except OSError as error:
                raise ChannelError(f"Cannot read the message {str(message)!r}") from error
            return loads(payload)
        raise Empty

    def _scan_messages(self) -> None:
        """List the messages of all queues, unless some are left of a recent listing."""
        now = monotonic()
        if any(self._messages.values()) and now - self._scanned_at < RESCAN_INTERVAL_S:
            return
        self._scanned_at = now
        for messages in self._messages.values():
            messages.clear()
        for queue, message in list_messages(self.data_folder_in):
            self._messages[queue].append(message)

    # kombu's classes disagree on the parameter's name
    def _put(  # type: ignore[override]
        self, queue: str, payload: dict[str, Any], **kwargs: Any
    ) -> None:
        """Write a message to a temporary file and rename it."""
        folder = Path(self.data_folder_out)
        name = f"{monotonic_ns() // 1_000_000}_{uuid4()}.{queue}.msg"
        message_path, temporary_path = folder / name, folder / f"{name}.part"
        try:
            temporary_path.write_text(dumps(payload), encoding="utf-8")
            temporary_path.replace(message_path)
        except OSError as error:
            temporary_path.unlink(missing_ok=True)
            raise ChannelError(f"Cannot write the message {str(message_path)!r}") from error


class FilesystemBrokerTransport(filesystem.Transport):
    """Kombu's transport with our channel."""

    Channel = FilesystemBrokerChannel

    # kombu's classes disagree on the parameters
    def drain_events(  # type: ignore[override]
        self, connection: Any, timeout: float | None = None
    ) -> None:
        """Handle the next message; raises `TimeoutError` if none comes, after a short wait."""
        super().drain_events(connection, timeout=timeout and min(timeout, MAX_WAIT_S))


def register_transport() -> None:
    """Use this transport for `filesystem://`."""
    TRANSPORT_ALIASES["filesystem"] = f"{__name__}:FilesystemBrokerTransport"


class BrokerUnreachable(Exception):
    """The broker doesn't answer."""


class QueueBacklog(NamedTuple):
    """The number of messages in a queue and the age of the oldest in seconds."""

    queue: str
    messages: int
    oldest_s: float


def check_broker() -> None:
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

    def read_queues(redis: Any) -> Any:
        pipeline = redis.pipeline(transaction=False)
        for name in QUEUE_NAMES:
            pipeline.llen(prefix + name)
            pipeline.lindex(prefix + name, -1)  # the oldest: Celery pushes left and pops right
        return pipeline.execute()

    replies = iter(_call_redis(read_queues))
    for name, messages, oldest in zip(QUEUE_NAMES, replies, replies, strict=True):
        yield QueueBacklog(
            name,
            messages,
            compute_message_age_s(loads(oldest).get("headers", {})) if oldest else 0.0,
        )


def _read_folder_backlogs() -> Iterator[QueueBacklog]:
    write_times: dict[str, list[float]] = {name: [] for name in QUEUE_NAMES}
    for queue, message in list_messages(_get_message_folder()):
        try:
            write_times.get(queue, []).append(message.stat().st_mtime)
        except FileNotFoundError:
            continue  # taken meanwhile
    now = time.time()
    for name, times in write_times.items():
        yield QueueBacklog(name, len(times), max(now - min(times, default=now), 0.0))


def _get_message_folder() -> Path:
    return Path(settings.BONOBOT_VAR) / "broker" / "messages"


def _call_redis(request: Any) -> Any:
    from redis.exceptions import RedisError  # an extra

    try:
        return request(_connect_redis())
    except RedisError as error:
        raise BrokerUnreachable from error


@compute_once
def _connect_redis() -> Any:
    import redis  # an extra

    timeouts = {"socket_timeout": REDIS_TIMEOUT_S, "socket_connect_timeout": REDIS_TIMEOUT_S}
    return redis.Redis.from_url(settings.REDIS_URL, **timeouts)
