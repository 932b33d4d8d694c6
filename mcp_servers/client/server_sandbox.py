"""Sandbox and rlimits of stdio children.

They are set by `prlimit` right before the command, so that everything it starts inherits them;
where that tool is absent (outside Linux) there are none. 0 means no limit.
"""

import resource
import shutil
from dataclasses import dataclass
from functools import cache

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """Bounds of one process; `processes` counts all of the user, or of its own namespace.

    `memory_mib` bounds what a process can write to rather than all that it maps: runtimes like
    that of Node.js reserve address space by the gigabyte and never touch it.
    """

    memory_mib: int = 0
    processes: int = 0
    open_files: int = 0
    cpu_s: int = 0
    file_mib: int = 0

    def prefix(self) -> tuple[str, ...]:
        """Return the words that go before a command; () where nothing is limited."""
        wanted = (
            ("--data", resource.RLIMIT_DATA, self.memory_mib * MIB),
            ("--nproc", resource.RLIMIT_NPROC, self.processes),
            ("--nofile", resource.RLIMIT_NOFILE, self.open_files),
            ("--cpu", resource.RLIMIT_CPU, self.cpu_s),
            ("--fsize", resource.RLIMIT_FSIZE, self.file_mib * MIB),
        )
        words = [
            f"{flag}={_get_allowed_limit(kind, value)}" for flag, kind, value in wanted if value
        ]
        tool = _find_prlimit() if words else None
        return (tool, *words, "--") if tool else ()


UNLIMITED = ProcessLimits()


def _get_allowed_limit(kind: int, value: int) -> int:
    """Return `value`, or our own limit where that is lower: nobody may raise it."""
    _, highest = resource.getrlimit(kind)
    return value if highest == resource.RLIM_INFINITY else min(value, highest)


@cache
def _find_prlimit() -> str | None:
    return shutil.which("prlimit")
