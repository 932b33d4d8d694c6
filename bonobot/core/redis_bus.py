"""Wake-ups and short texts between processes, over Redis.

Both may be lost at any time: database rows are authoritative, and code that waits for a wake-up
also polls, more often while `is_subscribed` is False. Without `REDIS_URL` nothing is sent.
A `RedisBus` belongs to the runtime's loop; `wake_listeners` may be called from any thread.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from django.conf import settings
from django.db import transaction

from bonobot.core.runtime import Runtime, get_runtime

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

logger = logging.getLogger(__name__)

# How long a text is kept after the last write.
KEPT_S = 300
# How long to wait before trying Redis again after a failure.
REST_S = 1.0
# Redis counts as unavailable if it takes longer than this.
PATIENCE_S = 2.0
# How often to ping a silent connection.
PULSE_S = 5.0

Woken = Callable[[], object]


@dataclass(frozen=True)
class BusTexts:
    """Short-lived texts by name, and the channel whose listeners are woken."""

    place: str
    texts: dict[str, str] = field(default_factory=dict)


class RedisBus:
    """This process's Redis connections: one that subscribes, others that write."""

    def __init__(self) -> None:
        self.hears = False
        self._client: Redis | None = None
        self._pubsub: PubSub | None = None
        self._listeners: dict[str, set[Woken]] = {}
        self._hearing: Future[None] | None = None
        self._rung: set[str] = set()
        self._ringing: asyncio.Task[None] | None = None
        self._away_until = 0.0

    async def show(self, shown: Iterable[BusTexts]) -> bool:
        """Store texts and wake the listeners of their channels; False if Redis is unavailable."""
        if not self._ready():
            return False
        pipeline = self._redis().pipeline(transaction=False)
        for one in shown:
            name = _build_key(one.place)
            if one.texts:
                pipeline.hset(name, items=[part for item in one.texts.items() for part in item])
                pipeline.expire(name, KEPT_S)
            pipeline.publish(name, "")
        return await self._tried(pipeline.execute()) is not None

    async def shown(self, place: str) -> dict[str, str]:
        """Return the stored texts of a channel; empty if Redis is unavailable."""
        if not self._ready():
            return {}
        found = await self._tried(self._redis().hgetall(_build_key(place)))
        return {name.decode(): text.decode() for name, text in (found or {}).items()}

    async def listen(self, place: str, woken: Woken) -> None:
        """Call `on_wake` for each wake-up of a channel and whenever `is_subscribed` changes."""
        new = place not in self._listeners
        self._listeners.setdefault(place, set()).add(woken)
        if not settings.REDIS_URL:
            return
        if self._hearing is None:
            self._redis()
            self._hearing = get_runtime().spawn(self._hear(), name="bus hears")
        elif new and self._pubsub is not None:
            await self._tried(self._pubsub.subscribe(_build_key(place)))

    def leave(self, place: str, woken: Woken) -> None:
        """Stop calling `on_wake`."""
        there = self._listeners.get(place, set())
        there.discard(woken)
        if not there and self._listeners.pop(place, None) is not None and self._pubsub is not None:
            left = self._tried(self._pubsub.unsubscribe(_build_key(place)))
            get_runtime().spawn(left, name="bus leaves")

    def ring(self, place: str) -> None:
        """Wake the listeners of a channel soon; coalesces wake-ups. Call on the loop only."""
        self._rung.add(place)
        if self._ringing is None or self._ringing.done():
            self._ringing = get_runtime().begin(self._ring(), name="bus rings")

    async def close(self) -> None:
        """Close the connections."""
        for task in (self._hearing, self._ringing):
            if task is not None:
                task.cancel()
        if self._client is not None:
            await self._client.aclose()

    async def _ring(self) -> None:
        while self._rung:
            places, self._rung = self._rung, set()
            await self.show(BusTexts(place) for place in places)

    async def _hear(self) -> None:
        """Listen until canceled; reconnect after failures."""
        from redis.exceptions import RedisError  # an extra

        while True:
            try:
                await self._heard()
            except (RedisError, OSError) as error:
                logger.warning("Redis is away, so rows are looked at more often: %s", error)
            finally:
                self._pubsub, self.hears = None, False
            self._wake(*self._listeners)
            await asyncio.sleep(REST_S)

    async def _heard(self) -> None:
        async with self._redis().pubsub() as pubsub:
            places = set(self._listeners)
            # The bus's own channel keeps the connection open while there are no listeners.
            await pubsub.subscribe(_build_key(""), *map(_build_key, places))
            self._pubsub = pubsub
            if late := self._listeners.keys() - places:
                await pubsub.subscribe(*map(_build_key, late))
            self.hears = True
            self._wake(*self._listeners)
            await self._attend(pubsub)

    async def _attend(self, pubsub: "PubSub") -> None:
        """Wake listeners for each message; raises ConnectionError if a ping gets no answer."""
        asked = False
        while True:
            message = await pubsub.get_message(timeout=PULSE_S)
            if message is None and asked:
                raise ConnectionError(f"no sign of life for {2 * PULSE_S:g} s")
            asked = message is None
            if message is None:
                await pubsub.ping()
            elif message["type"] == "message":
                self._wake(message["channel"].decode().removeprefix(_build_key("")))

    def _wake(self, *places: str) -> None:
        for place in places:
            for woken in tuple(self._listeners.get(place, ())):
                woken()

    def _redis(self) -> "Redis":
        if self._client is None:
            from redis.asyncio import Redis  # an extra
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff

            self._client = Redis.from_url(
                settings.REDIS_URL,
                # No silent retries: messages sent while disconnected are lost, so report it.
                retry=Retry(NoBackoff(), 0),
                socket_timeout=PATIENCE_S,
                socket_connect_timeout=PATIENCE_S,
                socket_keepalive=True,
            )
            get_runtime().on_close(self.close)
        return self._client

    def _ready(self) -> bool:
        return bool(settings.REDIS_URL) and monotonic() >= self._away_until

    async def _tried(self, asked: Any) -> Any:
        """Return Redis's answer, or None after a failure, which pauses further requests."""
        from redis.exceptions import RedisError  # an extra

        try:
            return await asked
        except (RedisError, OSError) as error:
            logger.warning("Redis is away: %s", error)
            self._away_until = monotonic() + REST_S
            return None


def _build_key(place: str) -> str:
    return f"{settings.BONOBOT_REDIS_PREFIX}:bus:{place}"


_lock = threading.Lock()
_by_runtime: WeakKeyDictionary[Runtime, RedisBus] = WeakKeyDictionary()


def get_bus() -> RedisBus:
    """Return the bus of this process's runtime."""
    with _lock:
        return _by_runtime.setdefault(get_runtime(), RedisBus())


def wake_listeners(place: str) -> None:
    """Wake the listeners of a channel in all processes after the current transaction commits."""
    if settings.REDIS_URL:
        transaction.on_commit(partial(_schedule_wakeup, place))


def _schedule_wakeup(place: str) -> None:
    get_runtime().loop.call_soon_threadsafe(get_bus().ring, place)
