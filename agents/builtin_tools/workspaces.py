"""Workspaces: the folder that an agent's tools work in, its own or one that was attached.

An agent's own folder is below `BONOBOT_VAR`, for nobody else to enter, and has a quota in bytes and
files. An attached one is a person's: nothing is counted there, and reading it is reading private
data. Whoever changes something holds a lock of the folder, across processes, so that a quota is
kept by all of them together.
"""

import asyncio
import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from django.conf import settings

from agents.builtin_tools.toolset_options import AgentToolsets
from bonobot.core.confined_folder import ConfinedFolder, FolderUsage, convert_os_error
from bonobot.core.crypto import key_files
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, NotFound, Problem

INSIDE = "/workspace"  # what commands in the sandbox know it as
THREADS = 8
# Nothing of these is anybody's work; whoever writes there changes the machine.
NEVER = ("/proc", "/sys", "/dev", "/run", "/boot", "/etc", "/usr", "/bin", "/sbin", "/lib")

_Found = TypeVar("_Found")


class QuotaExceeded(Problem):
    """The workspace has no room for it."""

    code = "quota_exceeded"
    status = 409
    title = "The workspace is full"


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where an agent works; `attached` where the folder is a person's."""

    root: Path
    attached: bool
    most_bytes: int
    most_files: int

    def open(self) -> ConfinedFolder:
        """Return the open folder; raises `NotFound` where an attached one is gone."""
        if not self.attached:
            key_files.ensure_private_folder(self.root)
        try:
            return ConfinedFolder(self.root)
        except OSError as error:
            raise NotFound(
                "The agent's folder can't be opened.",
                code="no_workspace",
                remedy="Its administrator attaches another one, or looks at the folder.",
            ) from error

    def usage(self, folder: ConfinedFolder) -> FolderUsage:
        """Return what is in it; of an attached folder nothing is counted."""
        return FolderUsage() if self.attached else folder.usage(self.most_files)

    @contextmanager
    def changing(self, folder: ConfinedFolder) -> Iterator[None]:
        """Hold the folder's lock: changes of one workspace are made one after the other."""
        fcntl.flock(folder.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(folder.fd, fcntl.LOCK_UN)

    def require_room(self, folder: ConfinedFolder, more_bytes: int, more_files: int = 1) -> None:
        """Raise `QuotaExceeded` where so much more doesn't fit; call it while `changing`."""
        used = self.usage(folder)
        if self.attached or not (more_bytes > 0 or more_files > 0):
            return
        files, size = used.files + more_files, used.size + more_bytes
        if used.more or files > self.most_files or size > self.most_bytes:
            raise QuotaExceeded(
                format_message(
                    "The workspace may hold {most_bytes:,} bytes in {most_files:,} "
                    "files and folders; it holds {size:,} bytes in {files:,}.",
                    most_bytes=self.most_bytes,
                    most_files=self.most_files,
                    size=used.size,
                    files=used.files,
                ),
                remedy="Delete what isn't needed any more, or ask for a larger workspace.",
            )


def build_workspace(
    organization_id: UUID, agent_id: UUID | None, toolbox: AgentToolsets
) -> Workspace:
    """Return the workspace of an agent; raises `NotFound` for calls without an agent."""
    if agent_id is None:
        raise NotFound("Only an agent has a workspace.", code="no_workspace")
    return Workspace(
        root=Path(toolbox.folder) if toolbox.folder else get_own_folder(organization_id, agent_id),
        attached=bool(toolbox.folder),
        most_bytes=toolbox.most_bytes,
        most_files=toolbox.most_files,
    )


def get_own_folder(organization_id: UUID, agent_id: UUID) -> Path:
    """Return where the agent's own folder is, made or not."""
    var: Path = settings.BONOBOT_VAR
    return var.resolve() / "workspaces" / str(organization_id) / str(agent_id)


def ensure_workspace_folder(organization_id: UUID, agent_id: UUID, folder: str = "") -> Path:
    """Return an agent's folder, made if it wasn't there: its root for servers that ask for one.

    `folder` is the attached one, of its session or else of the agent; "" where there is none.
    """
    return (
        Path(folder)
        if folder
        else key_files.ensure_private_folder(get_own_folder(organization_id, agent_id))
    )


def remove_own_folder(organization_id: UUID, agent_id: UUID) -> None:
    """Delete an agent's own folder with all that is in it; an attached one is never touched."""
    shutil.rmtree(get_own_folder(organization_id, agent_id), ignore_errors=True)


def check_folder(path: str) -> str:
    """Return a folder of this host as it is attached: absolute, without any link.

    Raises `Invalid` for what isn't there and for what would give the machine away.
    """
    folder = Path(path).expanduser()
    with suppress(OSError, RuntimeError):
        folder = folder.resolve()
    if "\0" in path or not folder.is_dir():
        raise _build_attach_error(path, "There is no such folder", "Name an existing folder.")
    near = [Path(settings.BASE_DIR), Path(settings.BONOBOT_VAR).resolve(), Path(sys.prefix)]
    if any(folder.is_relative_to(one) or one.is_relative_to(folder) for one in near):
        why = "It holds Bonobot's own files, or is among them"
        raise _build_attach_error(path, why, "Attach a folder apart from them.")
    if folder == Path("/") or any(folder.is_relative_to(one) for one in NEVER):
        raise _build_attach_error(
            path, "It belongs to the system", "Attach a folder with work in it."
        )
    return str(folder)


def _build_attach_error(path: str, why: str, remedy: str) -> InvalidInput:
    return InvalidInput(f"{why}: {path[:200]!r}.", field="workspace_folder", remedy=remedy)


async def run_in_thread(work: Callable[..., _Found], *args: object, **named: object) -> _Found:
    """Do blocking work in a thread of its own kind: slow disks hold up nobody else."""
    loop = asyncio.get_running_loop()
    call = partial(_translate_os_errors, work, *args, **named)
    return await loop.run_in_executor(_get_thread_pool(os.getpid()), call)


def _translate_os_errors(work: Callable[..., _Found], *args: object, **named: object) -> _Found:
    try:
        return work(*args, **named)
    except OSError as error:
        raise convert_os_error("the workspace", error) from error


@cache
def _get_thread_pool(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix=f"workspace-{pid}")
