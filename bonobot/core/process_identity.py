"""Identify processes of this machine, and tell which of them have ended.

Only proof counts: a process has ended if its id is unused, taken by a process that started at
another time, or that of a zombie. A process that is stopped, swapped out or in a long pause still
exists. Where nothing can be proven (another machine, another container, macOS after the id was
taken again), the process counts as running.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bonobot.core.process_cache import compute_once

PROC = Path("/proc")
SYSCTL = "/usr/sbin/sysctl"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process: its machine since its last boot, its id there, and when it started.

    `machine` is blank where the machine can't be identified; `started` where the time is unknown.
    """

    machine: str
    pid: int
    started: str = ""


def identify_this_process() -> ProcessIdentity:
    pid = os.getpid()
    stat = _read_stat(pid)
    return ProcessIdentity(_identify_machine(), pid, stat.started if stat else "")


def has_ended(process: ProcessIdentity) -> bool:
    """Tell whether a process has certainly ended."""
    if not process.machine or process.machine != _identify_machine():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False  # it exists, but belongs to another user
    stat = _read_stat(process.pid)
    if stat is None:
        return False
    return stat.is_zombie or (process.started not in ("", stat.started))


@dataclass(frozen=True, slots=True)
class _ProcessStat:
    started: str
    is_zombie: bool


def _read_stat(pid: int) -> _ProcessStat | None:
    """Read what Linux tells about a process; None elsewhere, and where it may not be read."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the program's name, in parentheses, which may contain anything.
    fields = text.rpartition(")")[2].split()
    # Threads can outlive the first one, which is then a zombie too.
    is_zombie = fields[0] in "ZX" and fields[17] in ("0", "1")
    return _ProcessStat(started=fields[19], is_zombie=is_zombie)


@compute_once
def _identify_machine() -> str:
    """Return a name of this machine's boot and, on Linux, of its process ids' namespace."""
    try:
        if sys.platform.startswith("linux"):
            boot_id = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            return f"{boot_id}/{(PROC / 'self/ns/pid').readlink()}"
        if sys.platform == "darwin":
            command = (SYSCTL, "-n", "kern.bootsessionuuid")
            output = subprocess.run(command, capture_output=True, check=True, timeout=5)  # noqa: S603
            return output.stdout.decode("ascii").strip()
    except (OSError, ValueError, subprocess.SubprocessError):
        pass
    return ""
