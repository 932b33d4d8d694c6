"""Script that brings up the loopback of a network namespace and runs a command.

    python -I -S loopback.py COMMAND ARGUMENT …

Servers whose processes communicate over 127.0.0.1 need it; it is down in a new namespace.
"""

import fcntl
import os
import socket
import struct
import sys

SIOCSIFFLAGS = 0x8914
IFF_UP = 1

if __name__ == "__main__":
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", IFF_UP))
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - the words that we were started with
