"""The broker: whether it answers, and what waits in each of its queues."""

import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings
from kombu.utils.json import loads

from bonobot.lib import spool
from bonobot.queues import NAMES, age_s

ANSWER_S = 1.0


class Unreachable(Exception):
    """The broker doesn't answer."""


class Waiting(NamedTuple):
    """How many messages wait in a queue, and for how long the oldest has (seconds)."""

    queue: str
    messages: int
    oldest_s: float


def ping() -> None:
    """Raise `Unreachable` unless the broker takes messages."""
    if settings.REDIS_URL:
        _asked(lambda redis: redis.ping())
    elif not spool.writable(_folder()):
        raise Unreachable


def waiting() -> list[Waiting]:
    """Return what waits in each queue, in one look; raises `Unreachable`."""
    return list(_in_redis() if settings.REDIS_URL else _in_folder())


def _in_redis() -> Iterator[Waiting]:
    prefix = f"{settings.BONOBOT_REDIS_PREFIX}:"

    def look(redis: Any) -> Any:
        asked = redis.pipeline(transaction=False)
        for name in NAMES:
            asked.llen(prefix + name)
            asked.lindex(prefix + name, -1)  # written at the left, taken from the right
        return asked.execute()

    found = iter(_asked(look))
    for name, messages, oldest in zip(NAMES, found, found, strict=True):
        yield Waiting(name, messages, age_s(loads(oldest).get("headers", {})) if oldest else 0.0)


def _in_folder() -> Iterator[Waiting]:
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    for queue, message in spool.messages(_folder()):
        try:
            found.get(queue, []).append(message.stat().st_mtime)
        except FileNotFoundError:
            continue  # taken meanwhile
    now = time.time()
    for name, written in found.items():
        yield Waiting(name, len(written), max(now - min(written, default=now), 0.0))


def _folder() -> Path:
    return Path(settings.BONOBOT_VAR) / "broker" / "messages"


def _asked(what: Any) -> Any:
    from redis.exceptions import RedisError  # an extra

    try:
        return what(_redis())
    except RedisError as error:
        raise Unreachable from error


@cache
def _redis() -> Any:
    import redis  # an extra

    seconds = {"socket_timeout": ANSWER_S, "socket_connect_timeout": ANSWER_S}
    return redis.Redis.from_url(settings.REDIS_URL, **seconds)
