"""bubblewrap arguments for the system's programs, which every sandbox sees read-only.

No home, no sockets, and of `/etc` only what programs need to start.
"""

from collections.abc import Iterator
from pathlib import Path

# Files that programs need to start; below, those for name resolution.
ETC_NAMES = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types"),
    *("ssl", "pki", "ca-certificates", "ca-certificates.conf", "nsswitch.conf"),
    *("chromium.d", "fonts"),  # for browsers
)
NETWORK_ETC_NAMES = ("resolv.conf", "hosts", "gai.conf", "services", "protocols")
PROGRAMS = ("/opt/google/chrome",)  # programs that packages install outside /usr
TOP_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
SHARED_MEMORY_BYTES = 64 * 1024 * 1024


def build_system_arguments(*, network: bool) -> tuple[str, ...]:
    """Return the arguments for the system's programs, a new /proc and a minimal /dev."""
    etc = (*ETC_NAMES, *NETWORK_ETC_NAMES) if network else ETC_NAMES
    return (
        *("--ro-bind", "/usr", "/usr", *_iterate_top_folders()),
        *(word for name in etc for word in build_optional_bind(f"/etc/{name}")),
        *(word for path in PROGRAMS for word in build_optional_bind(path)),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),  # noqa: S108
    )


def build_optional_bind(path: str) -> tuple[str, ...]:
    """Return the arguments that bind a path read-only if it exists."""
    return ("--ro-bind-try", path, path)


def _iterate_top_folders() -> Iterator[str]:
    """Yield the arguments for top-level program folders; links stay links."""
    for name in TOP_FOLDERS:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
