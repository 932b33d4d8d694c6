"""Wake-ups between the processes of an installation, and short texts where the bus can keep them.

Both may be lost at any time: database rows are authoritative, and code that waits for a wake-up
also polls, more often while `is_subscribed` is False. With `REDIS_URL`, Redis is the bus; otherwise
the processes of one machine send each other datagrams (`local_bus`). A bus belongs to the runtime's
loop; `wake_listeners` may be called from any thread.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

from django.conf import settings
from django.db import transaction

from bonobot.core.runtime import Runtime, find_runtime, get_runtime

WakeCallback = Callable[[], object]

# How often code that waits for a wake-up polls: without a connected bus, and with one.
POLL_INTERVAL_S = 0.5
FALLBACK_POLL_INTERVAL_S = 2.0
_lock = threading.Lock()


@dataclass(frozen=True)
class BusTexts:
    """Short-lived texts by name, and the channel whose listeners are woken."""

    channel: str
    texts: dict[str, str] = field(default_factory=dict)


class MessageBus(ABC):
    """This process's end of the bus."""

    def __init__(self) -> None:
        self.is_subscribed = False
        self._listeners: dict[str, set[WakeCallback]] = {}
        self._pending_channels: set[str] = set()
        self._wakeup_task: asyncio.Task[None] | None = None

    async def add_listener(self, channel: str, on_wake: WakeCallback) -> None:
        """Call `on_wake` for each wake-up of a channel and whenever `is_subscribed` changes."""
        is_new_channel = channel not in self._listeners
        self._listeners.setdefault(channel, set()).add(on_wake)
        await self._subscribe(channel, is_new_channel)

    def remove_listener(self, channel: str, on_wake: WakeCallback) -> None:
        """Stop calling `on_wake`."""
        listeners = self._listeners.get(channel, set())
        listeners.discard(on_wake)
        if not listeners and self._listeners.pop(channel, None) is not None:
            self._unsubscribe(channel)

    def queue_wakeup(self, channel: str) -> None:
        """Wake the listeners of a channel soon; coalesces wake-ups. Call on the loop only."""
        self._pending_channels.add(channel)
        if self._wakeup_task is None or self._wakeup_task.done():
            self._wakeup_task = get_runtime().create_task(
                self._send_pending_wakeups(), name="bus rings"
            )

    @abstractmethod
    async def publish_texts(self, all_texts: Iterable[BusTexts]) -> bool:
        """Store texts and wake the listeners of their channels; False if the bus can't do it."""

    @abstractmethod
    async def fetch_texts(self, channel: str) -> dict[str, str]:
        """Return the stored texts of a channel; empty if there are none or the bus is down."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""

    @abstractmethod
    async def _subscribe(self, channel: str, is_new_channel: bool) -> None:
        """Receive the wake-ups of a channel that has a listener."""

    @abstractmethod
    def _unsubscribe(self, channel: str) -> None:
        """Stop receiving the wake-ups of a channel without listeners."""

    @abstractmethod
    async def _send_wakeups(self, channels: set[str]) -> None:
        """Wake the listeners of channels in all processes."""

    async def _send_pending_wakeups(self) -> None:
        while self._pending_channels:
            channels, self._pending_channels = self._pending_channels, set()
            await self._send_wakeups(channels)

    def _wake(self, *channels: str) -> None:
        for channel in channels:
            for on_wake in tuple(self._listeners.get(channel, ())):
                on_wake()


_buses: WeakKeyDictionary[Runtime, MessageBus] = WeakKeyDictionary()


def get_bus() -> MessageBus:
    """Return the bus of this process's runtime."""
    runtime = get_runtime()
    with _lock:
        if (bus := _buses.get(runtime)) is None:
            bus = _buses[runtime] = _create_bus()
        return bus


class WakeupListener:
    """Waits for the wake-ups of a channel; one between two waits isn't lost."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """End the current wait, or the next one."""
        self._woken.set()

    async def wait(self, max_s: float = FALLBACK_POLL_INTERVAL_S) -> bool:
        """Return after the next wake-up, or when it is time to poll, at most after `max_s`.

        Returns whether it was woken.
        """
        poll_s = FALLBACK_POLL_INTERVAL_S if get_bus().is_subscribed else POLL_INTERVAL_S
        with suppress(TimeoutError):
            async with asyncio.timeout(min(poll_s, max_s)):
                await self._woken.wait()
        is_woken = self._woken.is_set()
        self._woken.clear()
        return is_woken


@asynccontextmanager
async def listen(channel: str) -> AsyncIterator[WakeupListener]:
    """Listen to a channel; check the rows after entering and after each wait."""
    listener = WakeupListener()
    await get_bus().add_listener(channel, listener.wake)
    try:
        yield listener
    finally:
        get_bus().remove_listener(channel, listener.wake)


def wake_listeners(channel: str) -> None:
    """Wake the listeners of a channel in all processes after the current transaction commits."""
    transaction.on_commit(partial(_schedule_wakeup, channel))


def _create_bus() -> MessageBus:
    # Imported here, because both implement the interface above.
    if settings.REDIS_URL:
        from bonobot.core.redis_bus import RedisBus

        return RedisBus()
    from bonobot.core.local_bus import LocalBus

    return LocalBus()


def _schedule_wakeup(channel: str) -> None:
    if settings.REDIS_URL or find_runtime() is not None:
        get_runtime().loop.call_soon_threadsafe(get_bus().queue_wakeup, channel)
        return
    # A short command: nothing listens here, and it may end before a loop would have started.
    from bonobot.core.local_bus import send_wakeup

    send_wakeup(channel)
