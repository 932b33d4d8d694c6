"""bubblewrap arguments for the system's programs, which every sandbox sees read-only.

No home, no sockets, and of `/etc` only what programs need to start.
"""

from collections.abc import Iterator
from pathlib import Path

# Files that programs need to start; below, those for name resolution.
ETC = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types"),
    *("ssl", "pki", "ca-certificates", "ca-certificates.conf", "nsswitch.conf"),
    *("chromium.d", "fonts"),  # for browsers
)
ETC_OF_NETWORK = ("resolv.conf", "hosts", "gai.conf", "services", "protocols")
PROGRAMS = ("/opt/google/chrome",)  # programs that packages install outside /usr
TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
SHARED_MEMORY_BYTES = 64 * 1024 * 1024


def system_words(*, network: bool) -> tuple[str, ...]:
    """Return the arguments for the system's programs, a new /proc and a minimal /dev."""
    etc = (*ETC, *ETC_OF_NETWORK) if network else ETC
    return (
        *("--ro-bind", "/usr", "/usr", *_top()),
        *(word for name in etc for word in bind_if_there(f"/etc/{name}")),
        *(word for path in PROGRAMS for word in bind_if_there(path)),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),  # noqa: S108
    )


def bind_if_there(path: str) -> tuple[str, ...]:
    """Return the arguments that bind a path read-only if it exists."""
    return ("--ro-bind-try", path, path)


def _top() -> Iterator[str]:
    """Yield the arguments for top-level program folders; links stay links."""
    for name in TOP:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
