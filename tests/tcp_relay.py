"""A TCP relay to a server that can be disconnected, to simulate a database restart."""

import contextlib
import socket
import threading
from collections.abc import Iterator

CHUNK = 65_536


class TcpRelay:
    """Relays connections to a server; while disconnected, it closes and refuses connections."""

    def __init__(self, host: str, port: int) -> None:
        """Listen on a free port of the loopback."""
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pulled = False
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.cut = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def disconnect(self) -> None:
        """Close every connection, and refuse new ones."""
        with self._lock:
            self._pulled = True
            for end in self._ends:
                self.cut += 1
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def reconnect(self) -> None:
        """Accept connections again."""
        with self._lock:
            self._pulled = False

    def close(self) -> None:
        """Stop listening."""
        self.disconnect()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            with self._lock:
                if self._pulled:
                    client.close()
                    continue
                server = socket.create_connection(self._server)
                self._ends |= {client, server}
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._relay, args=(source, target), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                target.sendall(data)
        with self._lock:
            for end in (source, target):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            # Each direction has its own thread, which closes the socket that it reads.
            self._ends.discard(source)
            source.close()


@contextlib.contextmanager
def open_relay(host: str, port: int) -> Iterator[TcpRelay]:
    """Yield a relay to a server; close it afterwards."""
    relay = TcpRelay(host, port)
    try:
        yield relay
    finally:
        relay.close()
