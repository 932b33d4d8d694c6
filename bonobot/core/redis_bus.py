"""The message bus over Redis, for any number of hosts: published wake-ups, and texts in hashes."""

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from concurrent.futures import Future
from time import monotonic
from typing import TYPE_CHECKING, Any

from django.conf import settings

from bonobot.core.message_bus import BusTexts, MessageBus
from bonobot.core.runtime import get_runtime

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

logger = logging.getLogger(__name__)

# How long a text is kept after the last write.
TEXT_TTL_S = 300
# How long to wait before trying Redis again after a failure.
RETRY_DELAY_S = 1.0
# Redis counts as unavailable if it takes longer than this.
REDIS_TIMEOUT_S = 2.0
# How often to ping a silent connection.
PING_INTERVAL_S = 5.0


class RedisBus(MessageBus):
    """This process's Redis connections: one that subscribes, others that write."""

    def __init__(self) -> None:
        super().__init__()
        self._client: Redis | None = None
        self._pubsub: PubSub | None = None
        self._listener_future: Future[None] | None = None
        self._unavailable_until = 0.0

    async def publish_texts(self, all_texts: Iterable[BusTexts]) -> bool:
        """Store texts and wake the listeners of their channels; False if Redis is unavailable."""
        if not self._is_ready():
            return False
        pipeline = self._get_client().pipeline(transaction=False)
        for bus_texts in all_texts:
            name = _build_key(bus_texts.channel)
            if bus_texts.texts:
                pipeline.hset(
                    name, items=[part for item in bus_texts.texts.items() for part in item]
                )
                pipeline.expire(name, TEXT_TTL_S)
            pipeline.publish(name, "")
        return await self._try_request(pipeline.execute()) is not None

    async def fetch_texts(self, channel: str) -> dict[str, str]:
        """Return the stored texts of a channel; empty if Redis is unavailable."""
        if not self._is_ready():
            return {}
        encoded_texts = await self._try_request(self._get_client().hgetall(_build_key(channel)))
        return {name.decode(): text.decode() for name, text in (encoded_texts or {}).items()}

    async def _subscribe(self, channel: str, is_new_channel: bool) -> None:
        if self._listener_future is None:
            self._get_client()
            self._listener_future = get_runtime().spawn(self._run_listener(), name="bus hears")
        elif is_new_channel and self._pubsub is not None:
            await self._try_request(self._pubsub.subscribe(_build_key(channel)))

    def _unsubscribe(self, channel: str) -> None:
        if self._pubsub is not None:
            unsubscribe = self._try_request(self._pubsub.unsubscribe(_build_key(channel)))
            get_runtime().spawn(unsubscribe, name="bus leaves")

    async def _send_wakeups(self, channels: set[str]) -> None:
        await self.publish_texts(BusTexts(channel) for channel in channels)

    async def close(self) -> None:
        for task in (self._listener_future, self._wakeup_task):
            if task is not None:
                task.cancel()
        if self._client is not None:
            await self._client.aclose()

    async def _run_listener(self) -> None:
        """Listen until canceled; reconnect after failures."""
        from redis.exceptions import RedisError  # an extra

        while True:
            try:
                await self._subscribe_and_process()
            except (RedisError, OSError) as error:
                logger.warning("Redis is away, so rows are looked at more often: %s", error)
            finally:
                self._pubsub, self.is_subscribed = None, False
            self._wake(*self._listeners)
            await asyncio.sleep(RETRY_DELAY_S)

    async def _subscribe_and_process(self) -> None:
        async with self._get_client().pubsub() as pubsub:
            channels = set(self._listeners)
            # The bus's own channel keeps the connection open while there are no listeners.
            await _await_request(pubsub.subscribe(_build_key(""), *map(_build_key, channels)))
            self._pubsub = pubsub
            if new_channels := self._listeners.keys() - channels:
                await _await_request(pubsub.subscribe(*map(_build_key, new_channels)))
            self.is_subscribed = True
            self._wake(*self._listeners)
            await self._process_messages(pubsub)

    async def _process_messages(self, pubsub: "PubSub") -> None:
        """Wake listeners for each message; raises ConnectionError if a ping gets no answer."""
        ping_sent = False
        while True:
            message = await pubsub.get_message(timeout=PING_INTERVAL_S)
            if message is None and ping_sent:
                raise ConnectionError(f"no sign of life for {2 * PING_INTERVAL_S:g} s")
            ping_sent = message is None
            if message is None:
                await _await_request(pubsub.ping())
            elif message["type"] == "message":
                self._wake(message["channel"].decode().removeprefix(_build_key("")))

    def _get_client(self) -> "Redis":
        if self._client is None:
            from redis.asyncio import Redis  # an extra
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff

            self._client = Redis.from_url(
                settings.REDIS_URL,
                # No silent retries: messages sent while disconnected are lost, so report it.
                retry=Retry(NoBackoff(), 0),
                socket_timeout=REDIS_TIMEOUT_S,
                socket_connect_timeout=REDIS_TIMEOUT_S,
                socket_keepalive=True,
            )
            get_runtime().on_close(self.close)
        return self._client

    def _is_ready(self) -> bool:
        return monotonic() >= self._unavailable_until

    async def _try_request(self, request: Any) -> Any:
        """Return Redis's answer, or None after a failure, which pauses further requests."""
        from redis.exceptions import RedisError  # an extra

        try:
            return await _await_request(request)
        except (RedisError, OSError) as error:
            logger.warning("Redis is away: %s", error)
            self._unavailable_until = monotonic() + RETRY_DELAY_S
            return None


async def _await_request(request: Awaitable[Any]) -> Any:
    """Await a request; raises `CancelledError` if the library swallowed a cancellation.

    It sends in `asyncio.wait_for`, which before Python 3.12 returns as if nothing had happened if
    the task is canceled when the bytes were just sent.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - requests are awaited in tasks
    cancellations = task.cancelling()
    try:
        return await request
    finally:
        if task.cancelling() > cancellations:
            raise asyncio.CancelledError


def _build_key(channel: str) -> str:
    return f"{settings.BONOBOT_REDIS_PREFIX}:bus:{channel}"
