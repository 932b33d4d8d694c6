"""A cable to a server, which can be pulled and put back: a database that restarts, for tests."""

import contextlib
import socket
import threading
from collections.abc import Iterator

CHUNK = 65_536


class Cable:
    """Relays connections to a server; while it is pulled, nobody is connected or let in."""

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

    def pull(self) -> None:
        """Cut every connection, and refuse new ones."""
        with self._lock:
            self._pulled = True
            for end in self._ends:
                self.cut += 1
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def put_back(self) -> None:
        """Let connections in again."""
        with self._lock:
            self._pulled = False

    def close(self) -> None:
        """End for good."""
        self.pull()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed
                return
            with self._lock:
                if self._pulled:
                    near.close()
                    continue
                far = socket.create_connection(self._server)
                self._ends |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._relay, args=(one, other), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                target.sendall(data)
        with self._lock:
            for end in (source, target):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            # Each direction has a thread of its own, which closes what it reads from.
            self._ends.discard(source)
            source.close()


@contextlib.contextmanager
def cable(host: str, port: int) -> Iterator[Cable]:
    """Give a cable to a server for as long as the block runs."""
    one = Cable(host, port)
    try:
        yield one
    finally:
        one.close()
