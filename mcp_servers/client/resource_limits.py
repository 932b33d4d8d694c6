"""Resource limits of stdio servers.

`prlimit` sets them right before the command starts, so everything it starts inherits them; without
that tool (outside Linux) there are none. 0 means no limit.
"""

import resource
import shutil
from dataclasses import dataclass

from bonobot.core.process_cache import compute_once

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """Limits of one process; `processes` counts those of the user or of its namespace.

    `memory_mib` limits data memory rather than address space: runtimes such as Node.js reserve
    gigabytes of address space and never use it.
    """

    memory_mib: int = 0
    processes: int = 0
    open_files: int = 0
    cpu_s: int = 0
    file_mib: int = 0

    def build_command_prefix(self) -> tuple[str, ...]:
        """Return the prefix of a command; () without limits."""
        limits = (
            ("--data", resource.RLIMIT_DATA, self.memory_mib * MIB),
            ("--nproc", resource.RLIMIT_NPROC, self.processes),
            ("--nofile", resource.RLIMIT_NOFILE, self.open_files),
            ("--cpu", resource.RLIMIT_CPU, self.cpu_s),
            ("--fsize", resource.RLIMIT_FSIZE, self.file_mib * MIB),
        )
        command_line = [
            f"{flag}={_get_allowed_limit(kind, value)}" for flag, kind, value in limits if value
        ]
        tool = _find_prlimit() if command_line else None
        return (tool, *command_line, "--") if tool else ()


UNLIMITED = ProcessLimits()


def _get_allowed_limit(kind: int, value: int) -> int:
    """Return `value`, or our own hard limit if that is lower."""
    _, highest = resource.getrlimit(kind)
    return value if highest == resource.RLIM_INFINITY else min(value, highest)


@compute_once
def _find_prlimit() -> str | None:
    return shutil.which("prlimit")
