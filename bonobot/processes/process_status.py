"""The state of the processes of `bonobot up`, in a file that settings and their check read.

The file exists while `bonobot up` runs. The database isn't used, because a process may have ended
for want of it.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

FILE_NAME = "processes.json"

State = Literal["running", "restarting", "stopped"]


@dataclass(frozen=True)
class ProcessStatus:
    """A process: its state, how often it was restarted, and how and when it ended the last time.

    `stopped`: it ended too often and isn't started again. `last_end_at` is in seconds since 1970.
    """

    name: str
    state: State
    restarts: int = 0
    last_end: str = ""
    last_end_at: float = field(default=0.0, compare=False)

    def needs_attention(self, now: float, max_age_s: float) -> bool:
        """Return whether it doesn't run, or ended within `max_age_s`."""
        return self.state != "running" or now - self.last_end_at < max_age_s


def write_statuses(folder: Path, statuses: Sequence[ProcessStatus], url: str = "") -> None:
    """Replace the file; `url` is where the web process listens."""
    processes = [asdict(status) for status in statuses]
    content = {"pid": os.getpid(), "url": url, "processes": processes}
    temporary_path = folder / f"{FILE_NAME}.part"
    temporary_path.write_text(json.dumps(content), encoding="utf-8")
    temporary_path.replace(folder / FILE_NAME)


def delete_statuses(folder: Path) -> None:
    """Delete the file, if it exists."""
    (folder / FILE_NAME).unlink(missing_ok=True)


def read_running_url(folder: Path) -> str:
    """Return the URL of the `bonobot up` that runs with this folder on this host, or ""."""
    try:
        content = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
        url = str(content["url"])
        os.kill(content["pid"], 0)
    except PermissionError:  # the process of another user
        return url
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return ""
    return url


def read_statuses(folder: Path) -> list[ProcessStatus]:
    """Return the states; none if no `bonobot up` runs with this folder on this host."""
    try:
        content = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
        os.kill(content["pid"], 0)
        return [ProcessStatus(**status) for status in content["processes"]]
    except PermissionError:  # the process of another user
        return [ProcessStatus(**status) for status in content["processes"]]
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return []  # no file, an incomplete one, or one that a killed `bonobot up` left
