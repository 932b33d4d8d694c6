"""The message bus of one machine, for installations without Redis: datagrams over Unix sockets.

Each process that listens binds a socket in `BONOBOT_VAR/bus`, which only its user can enter; a
sender writes to all of them. A datagram contains nothing but names of channels, and a receiver
ignores those without a listener. A killed process leaves its socket, which the next sender deletes.
Listeners of the same process are woken directly.
"""

import asyncio
import errno
import logging
import os
import secrets
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import monotonic

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from bonobot.core.crypto.key_files import ensure_private_folder
from bonobot.core.message_bus import BusTexts, MessageBus
from bonobot.core.runtime import get_runtime

logger = logging.getLogger(__name__)

# Systems limit datagrams; macOS to 2 KiB.
MAX_DATAGRAM_BYTES = 1024
# How many datagrams to read before other tasks of the loop get their turn.
MAX_DATAGRAMS_AT_ONCE = 64
# How many other processes are woken.
MAX_PEERS = 128
# How many channels are kept for a process whose queue is full; more are dropped.
MAX_UNSENT_CHANNELS = 1000
# How often to try a full queue again, for how long, and how long to leave it alone after that.
RETRY_INTERVAL_S = 0.02
MAX_FULL_S = 1.0
PAUSE_S = 5.0
# The length of a socket's address is limited: to 104 bytes on macOS, to 108 on Linux.
MAX_ADDRESS_BYTES = 100


class LocalBus(MessageBus):
    """This process's sockets: one that receives, one that sends."""

    def __init__(self) -> None:
        super().__init__()
        self._receiver: socket.socket | None = None
        self._peers: PeerSockets | None = None
        self._is_unavailable = False
        self._retrying: asyncio.Task[None] | None = None

    async def publish_texts(self, all_texts: Iterable[BusTexts]) -> bool:
        """Return False: datagrams carry no texts."""
        return False

    async def fetch_texts(self, channel: str) -> dict[str, str]:
        """Return nothing: texts are in rows."""
        return {}

    async def close(self) -> None:
        """Send what is pending, if the receivers can take it now, and close the sockets."""
        for task in (self._wakeup_task, self._retrying):
            if task is not None:
                task.cancel()
        if self._pending_channels and (peers := self._open_peers()) is not None:
            peers.send(self._pending_channels, monotonic())
        if self._receiver is not None:
            get_runtime().loop.remove_reader(self._receiver)
            self._receiver.close()
        if self._peers is not None:
            self._peers.close()
        self._receiver = self._peers = None
        self._is_unavailable, self.is_subscribed = True, False

    async def _subscribe(self, channel: str, is_new_channel: bool) -> None:
        if self._receiver is not None or (peers := self._open_peers()) is None:
            return
        try:
            self._receiver = peers.bind_receiver()
        except OSError as error:
            self._mark_unavailable(error)
            return
        get_runtime().loop.add_reader(self._receiver, self._receive)
        self.is_subscribed = True
        self._wake(*self._listeners)

    def _unsubscribe(self, channel: str) -> None:
        return

    async def _send_wakeups(self, channels: set[str]) -> None:
        self._wake(*channels)
        peers = self._open_peers()
        if peers is None or not peers.send(channels, monotonic()):
            return
        if self._retrying is None or self._retrying.done():
            self._retrying = get_runtime().create_task(
                self._retry_sending(peers), name="bus retries"
            )

    async def _retry_sending(self, peers: "PeerSockets") -> None:
        """Send what full queues didn't take; ends after `MAX_FULL_S` without success."""
        while True:
            await asyncio.sleep(RETRY_INTERVAL_S)
            if not peers.send_unsent(monotonic()):
                return

    def _receive(self) -> None:
        channels: set[str] = set()
        for datagram in islice(self._read_datagrams(), MAX_DATAGRAMS_AT_ONCE):
            if len(datagram) <= MAX_DATAGRAM_BYTES:
                channels.update(datagram.decode(errors="replace").split("\n"))
        self._wake(*channels)

    def _read_datagrams(self) -> Iterator[bytes]:
        """Yield the datagrams that have arrived; longer ones are cut off a byte over the limit."""
        with suppress(OSError):
            while self._receiver is not None:
                yield self._receiver.recv(MAX_DATAGRAM_BYTES + 1)

    def _open_peers(self) -> "PeerSockets | None":
        """Return the sockets of other processes; None if this machine can't have any."""
        if self._peers is None and not self._is_unavailable:
            try:
                self._peers = PeerSockets(_prepare_folder())
            except (OSError, ImproperlyConfigured) as error:
                self._mark_unavailable(error)
            else:
                get_runtime().on_close(self.close)
        return self._peers

    def _mark_unavailable(self, error: Exception) -> None:
        self._is_unavailable = True
        logger.warning("No messages between processes, so rows are polled more often: %s", error)


@dataclass
class Peer:
    """Another process: what its queue hasn't taken, and since when it is full."""

    unsent: set[str] = field(default_factory=set)
    full_since: float | None = None
    paused_until: float = 0.0


class PeerSockets:
    """The sockets in the bus's folder. Call from one thread."""

    def __init__(self, folder: Path) -> None:
        """Open a socket that sends; raises OSError."""
        self._folder = folder
        self._folder_descriptor = _open_long_folder(folder)
        self._peers: dict[str, Peer] = {}
        self._own_name = ""
        self._sender = _create_socket()

    def bind_receiver(self) -> socket.socket:
        """Return a socket on which this process receives, mode 0600; raises OSError."""
        receiver, name = _create_socket(), f"{os.getpid()}-{secrets.token_hex(4)}.sock"
        try:
            receiver.bind(self._build_address(name))
            (self._folder / name).chmod(0o600)
        except OSError:
            receiver.close()
            raise
        self._own_name = name
        return receiver

    def send(self, channels: Iterable[str], now: float) -> bool:
        """Send names of channels to all other processes; return whether some are left to send."""
        self._peers = {name: self._peers.get(name) or Peer() for name in self._list_names()}
        for peer in self._peers.values():
            if now >= peer.paused_until:
                room = max(0, MAX_UNSENT_CHANNELS - len(peer.unsent))
                peer.unsent.update(islice(channels, room))
        return self.send_unsent(now)

    def send_unsent(self, now: float) -> bool:
        """Try again to send what is left; return whether some of it still is."""
        for name, peer in self._peers.items():
            if peer.unsent:
                self._send_to_peer(name, peer, now)
        return any(peer.unsent for peer in self._peers.values())

    def close(self) -> None:
        """Close the sending socket and delete the address of the receiving one."""
        self._sender.close()
        if self._own_name:
            (self._folder / self._own_name).unlink(missing_ok=True)
        if self._folder_descriptor is not None:
            os.close(self._folder_descriptor)

    def _send_to_peer(self, name: str, peer: Peer, now: float) -> None:
        try:
            for channels in _split_channels(peer.unsent):
                self._sender.sendto("\n".join(channels).encode(), self._build_address(name))
                peer.unsent -= channels
                peer.full_since = None
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOBUFS):
                _note_full_queue(peer, now)
                return
            if error.errno == errno.ECONNREFUSED:  # its process was killed
                self._delete_socket(name)
        peer.unsent.clear()
        peer.full_since = None

    def _list_names(self) -> list[str]:
        with suppress(OSError), os.scandir(self._folder) as entries:
            names = (entry.name for entry in entries if entry.name.endswith(".sock"))
            return list(islice((name for name in names if name != self._own_name), MAX_PEERS))
        return []

    def _delete_socket(self, name: str) -> None:
        path = self._folder / name
        with suppress(OSError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()

    def _build_address(self, name: str) -> str:
        if self._folder_descriptor is None:
            return str(self._folder / name)
        return f"/proc/self/fd/{self._folder_descriptor}/{name}"


def send_wakeup(channel: str) -> None:
    """Send a wake-up from a process without a runtime; it is lost where a queue is full."""
    with suppress(OSError, ImproperlyConfigured):
        peers = PeerSockets(_prepare_folder())
        try:
            peers.send([channel], monotonic())
        finally:
            peers.close()


def _prepare_folder() -> Path:
    folder = ensure_private_folder(Path(settings.BONOBOT_VAR) / "bus")
    folder.chmod(0o700)
    return folder


def _create_socket() -> socket.socket:
    created = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    created.setblocking(False)
    return created


def _open_long_folder(folder: Path) -> int | None:
    """Open the folder if its path is too long for addresses; raises OSError if that can't help."""
    longest_path = folder / f"{2**22}-{'0' * 8}.sock"
    if len(os.fsencode(longest_path)) <= MAX_ADDRESS_BYTES:
        return None
    if not Path("/proc/self/fd").is_dir():
        raise OSError(errno.ENAMETOOLONG, "the path of BONOBOT_VAR is too long for sockets")
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


def _split_channels(channels: Iterable[str]) -> Iterator[set[str]]:
    """Yield channels in sets that fit into a datagram; a name that doesn't fit is left out."""
    batch: set[str] = set()
    size = 0
    for channel in sorted(channels):
        length = len(channel.encode()) + 1
        if length > MAX_DATAGRAM_BYTES:
            continue
        if size + length > MAX_DATAGRAM_BYTES:
            yield batch
            batch, size = set(), 0
        batch.add(channel)
        size += length
    if batch:
        yield batch


def _note_full_queue(peer: Peer, now: float) -> None:
    """Keep what is unsent, or drop it and pause if the queue has been full for too long."""
    if peer.full_since is None:
        peer.full_since = now
    elif now - peer.full_since > MAX_FULL_S:
        peer.unsent.clear()
        peer.full_since, peer.paused_until = None, now + PAUSE_S
