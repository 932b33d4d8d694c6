"""Containment: how a child process is kept in its own box and made to die with its owner.

On Linux, where the system lets us: `setpriv` sends SIGKILL when the thread that started the child
ends, `unshare` gives it a process namespace of its own, so that everything it started dies with
it (whatever session or group those moved to) and no other process can be seen. Where namespaces
are not allowed, the child alone dies with its owner and its group is killed on close. Elsewhere
only the group is. What works is tried once per process.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

TRIAL_S = 5.0
TOOLS = ("setpriv", "unshare")
# All that a child gets beside what its server declares. PATH finds launchers, HOME their caches,
# the others say who, in which language and time zone, and where scratch files go.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")


@dataclass(frozen=True)
class Containment:
    """One way to start a child; `prefix` goes before its command."""

    name: str
    promise: str
    prefix: tuple[str, ...]


GROUP = Containment(
    "group",
    "The child and its group are killed on close; if Bonobot is killed, they see their input end.",
    (),
)
DEATH_SIGNAL = Containment(
    "death-signal",
    "The child dies with Bonobot; what it started in sessions of its own may survive it.",
    ("setpriv", "--pdeathsig", "KILL", "--"),
)
NAMESPACE = Containment(
    "namespace",
    "The child and everything it started die with Bonobot; it sees no other process.",
    (
        *("setpriv", "--pdeathsig", "KILL", "--"),
        *("unshare", "--user", "--map-current-user", "--pid", "--mount-proc", "--fork"),
        *("--kill-child=SIGKILL", "--"),
    ),
)


@cache
def containment() -> Containment:
    """Return the strongest way that works here, tried once (blocks up to 10 s the first time)."""
    for way in (NAMESPACE, DEATH_SIGNAL):
        if sys.platform == "linux" and (found := _working(way)):
            return found
    return GROUP


def environment(declared: Mapping[str, str]) -> dict[str, str]:
    """Return a child's whole environment: `INHERITED` and what its server declares.

    Commands installed beside Bonobot's own Python are found last on PATH.
    """
    own = {name: os.environ[name] for name in INHERITED if name in os.environ}
    beside = str(Path(sys.executable).parent)
    own["PATH"] = os.pathsep.join(filter(None, (own.get("PATH", os.defpath), beside)))
    return own | dict(declared)


def find_command(command: str, env: Mapping[str, str], cwd: str | None) -> str | None:
    """Return the executable that `command` means to the child; None if there is none."""
    if cwd is not None and os.sep in command and not Path(command).is_absolute():
        command = str(Path(cwd) / command)
    found = shutil.which(command, path=env.get("PATH", os.defpath))
    return str(Path(found).absolute()) if found else None


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signal the process group that the child `pid` leads; quietly, if none of it is left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _working(way: Containment) -> Containment | None:
    """Return `way` with the tools' own paths (a child's PATH is not asked), if it works."""
    paths = {word: shutil.which(word) or "" for word in way.prefix if word in TOOLS}
    if not all(paths.values()):
        return None
    found = replace(way, prefix=tuple(paths.get(word, word) for word in way.prefix))
    try:
        trial = subprocess.run(  # noqa: S603 - fixed words
            [*found.prefix, "true"],
            capture_output=True,
            timeout=TRIAL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found if trial.returncode == 0 else None
