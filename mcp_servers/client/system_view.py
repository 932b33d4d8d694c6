"""The part of the file system that every sandbox sees: the system's programs, read-only.

Pure words for bubblewrap: no home, no `/etc` but what programs need to start, no socket.
"""

from collections.abc import Iterator
from pathlib import Path

# What programs look for to start, and of the network what names need.
ETC = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types"),
    *("ssl", "pki", "ca-certificates", "ca-certificates.conf", "nsswitch.conf"),
    *("chromium.d", "fonts"),  # of browsers
)
ETC_OF_NETWORK = ("resolv.conf", "hosts", "gai.conf", "services", "protocols")
PROGRAMS = ("/opt/google/chrome",)  # what packages install outside /usr
TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
SHARED_MEMORY_BYTES = 64 * 1024 * 1024


def system_words(*, network: bool) -> tuple[str, ...]:
    """Return the words that show the system's programs, an own /proc and a small /dev."""
    etc = (*ETC, *ETC_OF_NETWORK) if network else ETC
    return (
        *("--ro-bind", "/usr", "/usr", *_top()),
        *(word for name in etc for word in bind_if_there(f"/etc/{name}")),
        *(word for path in PROGRAMS for word in bind_if_there(path)),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),  # noqa: S108
    )


def bind_if_there(path: str) -> tuple[str, ...]:
    """Return the words that show a path read-only, if it exists."""
    return ("--ro-bind-try", path, path)


def _top() -> Iterator[str]:
    """Yield what puts the system's folders of programs in their place: links stay links."""
    for name in TOP:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
