"""The bus over a real Redis: rings that come, texts that are kept, and a Redis that is away."""

import asyncio
from weakref import WeakKeyDictionary

import pytest

from bonobot.core import redis_bus as module
from bonobot.core.redis_bus import BusTexts, RedisBus, get_bus
from bonobot.core.runtime import get_runtime


@pytest.fixture(autouse=True)
def _bus_of_its_own(monkeypatch):
    monkeypatch.setattr(module, "_buses", WeakKeyDictionary())
    yield
    get_runtime().call(get_bus().close)


async def heard(event):
    async with asyncio.timeout(10):
        await event.wait()


async def hearing(one):
    """Return when the bus hears: it says so to who listens."""
    changed = asyncio.Event()
    await one.add_listener("changes", changed.set)
    while not one.is_subscribed:
        await heard(changed)
        changed.clear()


@pytest.mark.redis
def test_a_signal_of_another_process_is_received_only_on_its_channel():
    async def rung():
        here, there = get_bus(), RedisBus()
        await hearing(here)
        one, other, left = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for place, event in (("one", one), ("other", other), ("left", left)):
            await here.add_listener(place, event.set)
        here.remove_listener("left", left.set)
        there.queue_wakeup("left")
        there.queue_wakeup("one")
        await heard(one)
        await there.close()
        return other.is_set(), left.is_set()

    assert get_runtime().call(rung) == (False, False)


@pytest.mark.redis
def test_texts_are_kept_briefly_and_wake_listeners():
    async def shown():
        here, there = get_bus(), RedisBus()
        await hearing(here)
        woken = asyncio.Event()
        await here.add_listener("place", woken.set)
        assert await there.publish_texts([BusTexts("place", {"1": "grün", "2": "x"})])
        await heard(woken)
        assert await there.publish_texts([BusTexts("place", {"2": "y"})])
        assert 0 < await here._get_client().ttl(module._build_key("place")) <= module.TEXT_TTL_S
        await there.close()
        return await here.fetch_texts("place")

    assert get_runtime().call(shown) == {"1": "grün", "2": "y"}


def test_an_unavailable_redis_isnt_contacted_for_a_while(settings, free_port, caplog):
    settings.REDIS_URL = f"redis://:s3cret@127.0.0.1:{free_port}/0"

    async def tried():
        one = get_bus()
        await one.add_listener("place", lambda: None)
        assert not await one.publish_texts([BusTexts("place", {"1": "x"})])
        assert not await one.publish_texts([BusTexts("place", {"1": "x"})])
        return await one.fetch_texts("place"), one.is_subscribed

    assert get_runtime().call(tried) == ({}, False)
    refused = [one for one in caplog.messages if one.startswith("Redis is away: ")]
    assert len(refused) == 1
    assert "s3cret" not in caplog.text


def test_without_redis_nothing_is_sent_or_received(settings):
    settings.REDIS_URL = ""

    async def tried():
        one = get_bus()
        await one.add_listener("place", lambda: None)
        one.queue_wakeup("place")
        return await one.publish_texts([BusTexts("place", {"1": "x"})]), one._client

    assert get_runtime().call(tried) == (False, None)
