"""The bus over a real Redis: wakeups, stored texts, and an unavailable Redis."""

import asyncio
from weakref import WeakKeyDictionary

import pytest

from bonobot.core import message_bus
from bonobot.core import redis_bus as module
from bonobot.core.message_bus import BusTexts, get_bus
from bonobot.core.redis_bus import RedisBus
from bonobot.core.runtime import get_runtime


@pytest.fixture(autouse=True)
def _new_bus(monkeypatch):
    monkeypatch.setattr(message_bus, "_buses", WeakKeyDictionary())
    yield
    get_runtime().call(get_bus().close)


async def wait_for(event):
    async with asyncio.timeout(10):
        await event.wait()


async def wait_until_subscribed(bus):
    """Wait until the bus is subscribed."""
    changed = asyncio.Event()
    await bus.add_listener("changes", changed.set)
    while not bus.is_subscribed:
        await wait_for(changed)
        changed.clear()


@pytest.mark.redis
def test_a_signal_of_another_process_is_received_only_on_its_channel():
    async def run():
        bus, other_bus = get_bus(), RedisBus()
        await wait_until_subscribed(bus)
        one_event, other_event, removed_event = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for channel, event in (("one", one_event), ("other", other_event), ("left", removed_event)):
            await bus.add_listener(channel, event.set)
        bus.remove_listener("left", removed_event.set)
        other_bus.queue_wakeup("left")
        other_bus.queue_wakeup("one")
        await wait_for(one_event)
        await other_bus.close()
        return other_event.is_set(), removed_event.is_set()

    assert get_runtime().call(run) == (False, False)


@pytest.mark.redis
def test_texts_are_kept_briefly_and_wake_listeners():
    async def run_texts():
        bus, other_bus = get_bus(), RedisBus()
        await wait_until_subscribed(bus)
        woken = asyncio.Event()
        await bus.add_listener("place", woken.set)
        assert await other_bus.publish_texts([BusTexts("place", {"1": "grün", "2": "x"})])
        await wait_for(woken)
        assert await other_bus.publish_texts([BusTexts("place", {"2": "y"})])
        assert 0 < await bus._get_client().ttl(module._build_key("place")) <= module.TEXT_TTL_S
        await other_bus.close()
        return await bus.fetch_texts("place")

    assert get_runtime().call(run_texts) == {"1": "grün", "2": "y"}


def test_an_unavailable_redis_isnt_contacted_for_a_while(settings, free_port, caplog):
    settings.REDIS_URL = f"redis://:s3cret@127.0.0.1:{free_port}/0"

    async def run_without_redis():
        bus = get_bus()
        await bus.add_listener("place", lambda: None)
        assert not await bus.publish_texts([BusTexts("place", {"1": "x"})])
        assert not await bus.publish_texts([BusTexts("place", {"1": "x"})])
        return await bus.fetch_texts("place"), bus.is_subscribed

    assert get_runtime().call(run_without_redis) == ({}, False)
    warnings = [message for message in caplog.messages if message.startswith("Redis is away: ")]
    assert len(warnings) == 1
    assert "s3cret" not in caplog.text


def test_a_cancellation_during_a_request_isnt_lost():
    async def run():
        # As in redis-py: the bytes have been sent when the task is canceled.
        sent = asyncio.get_running_loop().create_future()
        request = asyncio.create_task(RedisBus()._try_request(asyncio.wait_for(sent, 10)))
        await asyncio.sleep(0)
        sent.set_result(None)
        request.cancel()
        await asyncio.wait({request})
        assert request.cancelled()

    get_runtime().call(run)
