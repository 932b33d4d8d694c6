"""Lead a sandbox's only way out, a socket, to a port of its own loopback, and run a command.

    python -I -S bridge.py SOCKET PORT COMMAND ARGUMENT …

Programs know proxies by an address (`HTTPS_PROXY=http://127.0.0.1:3128`); the network namespace has
a loopback, and the socket is reached through the file system. It ends with the command's status.
"""

import os
import signal
import socket
import sys
import threading
from contextlib import suppress

MOST = 256  # connections at a time
PIECE = 64 * 1024


def main(path: str, port: int, command: list[str]) -> int:
    """Serve the port until the command ends; return its status."""
    listener = socket.create_server(("127.0.0.1", port))
    pid = os.fork()
    if pid == 0:
        listener.close()
        try:
            os.execv(command[0], command)  # noqa: S606 - the words that we were started with
        except OSError as error:
            sys.stderr.write(f"{command[0]}: {error.strerror}\n")
            os._exit(127)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the command gets it too, and decides
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)  # so that the end of the command's output is seen
    threading.Thread(target=serve, args=(listener, path), daemon=True).start()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if status >= 0 else 128 - status


def serve(listener: socket.socket, path: str) -> None:
    """Accept connections and lead each to the socket."""
    slots = threading.BoundedSemaphore(MOST)
    while True:
        slots.acquire()
        client, _ = listener.accept()
        threading.Thread(target=lead, args=(client, path, slots), daemon=True).start()


def lead(client: socket.socket, path: str, slots: threading.BoundedSemaphore) -> None:
    """Copy both ways until both sides have ended."""
    with client, socket.socket(socket.AF_UNIX) as way_out, suppress(OSError):
        way_out.connect(path)
        back = threading.Thread(target=copy, args=(way_out, client), daemon=True)
        back.start()
        copy(client, way_out)
        back.join()
    slots.release()


def copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends, and tell the target."""
    with suppress(OSError):
        while piece := source.recv(PIECE):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
