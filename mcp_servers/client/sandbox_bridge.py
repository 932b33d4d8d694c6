"""Forward loopback ports of a sandbox to the egress proxy's socket, and run a command.

    python -I -S bridge.py [SOCKET ADDRESS:PORT[=HOST:PORT] …] -- COMMAND ARGUMENT …

Programs need an address for a proxy (`HTTPS_PROXY=http://127.0.0.1:3128`), while the proxy's socket
is in the file system. `=HOST:PORT` is the target of a port: the bridge opens a tunnel to it through
the egress proxy, for programs without proxy support. It exits with the command's status. The
command inherits only the standard streams: through an open folder it could escape from the sandbox.
"""

import os
import signal
import socket
import sys
import threading
from contextlib import suppress

MAX_CONNECTIONS = 256  # concurrent connections
CHUNK_BYTES = 64 * 1024
MOST_DESCRIPTORS = 1 << 20


def main(path: str, ports: list[str], command: list[str]) -> int:
    """Serve the ports until the command ends; return its status."""
    os.closerange(3, MOST_DESCRIPTORS)
    if not ports:
        return exec_command(command)
    listeners = [(open_listener(port), port.partition("=")[2]) for port in ports]
    pid = os.fork()
    if pid == 0:
        for listener, _ in listeners:
            listener.close()
        os._exit(exec_command(command))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the command gets it too and handles it
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)  # so that readers see the end of the command's output
    slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
    for listener, target in listeners:
        threading.Thread(
            target=accept_connections, args=(listener, path, target, slots), daemon=True
        ).start()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if status >= 0 else 128 - status


def exec_command(command: list[str]) -> int:
    """Replace this process by the command; return 127 if it can't be started."""
    try:
        os.execv(command[0], command)  # noqa: S606 - the words that we were started with
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.stderr.flush()
    return 127


def open_listener(port: str) -> socket.socket:
    """Listen on the `ADDRESS:PORT` before the `=`."""
    address, _, number = port.partition("=")[0].rpartition(":")
    return socket.create_server((address, int(number)))


def accept_connections(
    listener: socket.socket, path: str, target: str, slots: threading.BoundedSemaphore
) -> None:
    """Accept connections and forward each to the socket, or through it to the target."""
    while True:
        slots.acquire()
        client, _ = listener.accept()
        threading.Thread(
            target=forward_connection, args=(client, path, target, slots), daemon=True
        ).start()


def forward_connection(
    client: socket.socket, path: str, target: str, slots: threading.BoundedSemaphore
) -> None:
    """Copy both ways until both sides have ended."""
    with client, socket.socket(socket.AF_UNIX) as proxy, suppress(OSError):
        proxy.connect(path)
        if not target or open_tunnel(proxy, target):
            receiving = threading.Thread(target=copy_stream, args=(proxy, client), daemon=True)
            receiving.start()
            copy_stream(client, proxy)
            receiving.join()
    slots.release()


def open_tunnel(proxy: socket.socket, target: str) -> bool:
    """Open a tunnel through the egress proxy; on failure write the reason to stderr."""
    proxy.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):  # byte by byte: the bytes after it are the target's
        byte = proxy.recv(1)
        if not byte:
            return False
        head += byte
    if head.split(b" ")[1] == b"200":
        return True
    reason = proxy.makefile(errors="replace").read().strip()
    sys.stderr.write(f"No connection to {target}: {reason}\n")
    return False


def copy_stream(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends, then shut down the target for writing."""
    with suppress(OSError):
        while chunk := source.recv(CHUNK_BYTES):
            target.sendall(chunk)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    end = sys.argv.index("--")
    sys.exit(main(sys.argv[1], sys.argv[2:end], sys.argv[end + 1 :]))
