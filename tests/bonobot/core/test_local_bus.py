"""The bus of one machine over real sockets: wake-ups, killed processes, full queues, bad data."""

import asyncio
import socket
import stat
from pathlib import Path
from tempfile import TemporaryDirectory
from weakref import WeakKeyDictionary

import pytest

from bonobot.core import local_bus as module
from bonobot.core import message_bus
from bonobot.core.local_bus import LocalBus, PeerSockets, send_wakeup
from bonobot.core.message_bus import BusTexts, get_bus
from bonobot.core.runtime import get_runtime


@pytest.fixture(autouse=True)
def folder(monkeypatch, settings):
    """The folder of the sockets; its path is short, because addresses have at most 107 bytes."""
    monkeypatch.setattr(message_bus, "_buses", WeakKeyDictionary())
    with TemporaryDirectory(prefix="bus-", dir="/tmp") as short_folder:
        settings.REDIS_URL, settings.BONOBOT_VAR = "", Path(short_folder)
        yield Path(short_folder, "bus")
        get_runtime().call(get_bus().close)


async def wait_for(event):
    async with asyncio.timeout(10):
        await event.wait()


async def listen(bus, *channels):
    """Return events that are set by wake-ups of channels."""
    events = [asyncio.Event() for _ in channels]
    for channel, event in zip(channels, events, strict=True):
        await bus.add_listener(channel, event.set)
        event.clear()  # the first listener learns that the bus is subscribed
    return events


def bind_socket(path):
    """Return a socket of another process, which reads nothing."""
    path.parent.mkdir(exist_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    bound.bind(str(path))
    return bound


def test_a_wakeup_reaches_other_processes_and_this_one_on_its_channel_only():
    async def run():
        bus, other_bus = get_bus(), LocalBus()
        here, left = await listen(bus, "here", "left")
        there, elsewhere = await listen(other_bus, "here", "elsewhere")
        bus.remove_listener("left", left.set)
        other_bus.queue_wakeup("left")
        other_bus.queue_wakeup("here")
        await wait_for(here)
        await wait_for(there)
        await other_bus.close()
        return bus.is_subscribed, other_bus.is_subscribed, left.is_set(), elsewhere.is_set()

    assert get_runtime().call(run) == (True, False, False, False)


async def check_wakeup_of_another_process():
    [woken] = await listen(get_bus(), "place")
    await asyncio.to_thread(send_wakeup, "place")
    await wait_for(woken)


def test_a_process_without_a_loop_wakes_others():
    get_runtime().call(check_wakeup_of_another_process)


def test_only_this_user_can_use_the_sockets_and_closing_deletes_them(folder):
    async def run():
        await listen(get_bus(), "place")
        [path] = folder.iterdir()
        modes = [stat.S_IMODE(each.stat().st_mode) for each in (folder, path)]
        await get_bus().close()
        return modes, list(folder.iterdir())

    assert get_runtime().call(run) == ([0o700, 0o600], [])


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="Linux has a short name for it")
def test_a_long_path_of_the_folder_is_no_obstacle(settings, tmp_path):
    settings.BONOBOT_VAR = tmp_path / ("long" * 30)
    get_runtime().call(check_wakeup_of_another_process)


def test_without_a_usable_folder_listeners_of_this_process_are_woken(settings, tmp_path, caplog):
    (tmp_path / "file").touch()
    settings.BONOBOT_VAR = tmp_path / "file"

    async def run():
        bus = get_bus()
        [woken] = await listen(bus, "place")
        bus.queue_wakeup("place")
        await wait_for(woken)
        return bus.is_subscribed

    assert get_runtime().call(run) is False
    assert len([text for text in caplog.messages if text.startswith("No messages between")]) == 1


def test_the_socket_of_a_killed_process_is_deleted_and_other_files_are_kept(folder):
    bind_socket(folder / "1-dead.sock").close()
    (folder / "note.sock").write_text("not a socket")
    with bind_socket(folder / "2-alive.sock") as alive:
        send_wakeup("place")
        assert alive.recv(100) == b"place"
    assert sorted(path.name for path in folder.iterdir()) == ["2-alive.sock", "note.sock"]


def test_oversized_unknown_and_binary_datagrams_are_ignored(folder):
    async def run():
        bus = get_bus()
        place, other = await listen(bus, "place", "other")
        [path] = folder.iterdir()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hostile:
            hostile.connect(str(path))
            oversized = b"other\n" + b"x" * module.MAX_DATAGRAM_BYTES
            for datagram in (oversized, b"", b"\xff\x00\n\n", b"nowhere", b"\xfe\nplace"):
                hostile.send(datagram)
        await wait_for(place)
        return other.is_set()

    assert get_runtime().call(run) is False


def test_a_process_that_reads_nothing_delays_nobody_and_is_left_alone(folder):
    folder.mkdir()
    sockets = PeerSockets(folder)
    with bind_socket(folder / "1-stopped.sock") as stopped:
        stopped.setblocking(False)
        channel_count = 0
        while not sockets.send([f"channel:{channel_count}"], now=0):
            channel_count += 1
        with bind_socket(folder / "2-alive.sock") as alive:
            alive.setblocking(False)
            many = [f"session:{number}" for number in range(3 * module.MAX_UNSENT_CHANNELS)]
            assert sockets.send(many, now=0.5)
            assert alive.recv(module.MAX_DATAGRAM_BYTES)
        (folder / "2-alive.sock").unlink()
        peer = sockets._peers["1-stopped.sock"]
        assert len(peer.unsent) == module.MAX_UNSENT_CHANNELS
        assert not sockets.send([], now=module.MAX_FULL_S + 0.1), "what is unsent is dropped"
        assert stopped.recv(100) == b"channel:0"
        assert not sockets.send(["missed"], now=module.MAX_FULL_S + 0.2)
        assert not peer.unsent
        assert not sockets.send(["place"], now=module.MAX_FULL_S + module.PAUSE_S + 0.2)
        received = list(iter(lambda: _receive(stopped), b""))
    sockets.close()
    assert received[-1] == b"place"
    assert b"missed" not in received


def _receive(unix_socket):
    try:
        return unix_socket.recv(module.MAX_DATAGRAM_BYTES)
    except BlockingIOError:
        return b""


def test_what_a_full_queue_refused_is_sent_later(folder):
    folder.mkdir()

    async def run():
        bus = LocalBus()
        with bind_socket(folder / "1-slow.sock") as slow:
            slow.setblocking(False)
            count = 0
            while not (bus._open_peers().send([f"channel:{count}"], now=0)):
                count += 1
            bus.queue_wakeup("last")
            async with asyncio.timeout(10):
                while b"last" not in (await get_runtime().loop.sock_recv(slow, 1024)).split(b"\n"):
                    pass
        await bus.close()

    get_runtime().call(run)


def test_no_texts_are_kept():
    async def run():
        bus = get_bus()
        return await bus.publish_texts([BusTexts("place", {"1": "x"})]), await bus.fetch_texts(
            "place"
        )

    assert get_runtime().call(run) == (False, {})
