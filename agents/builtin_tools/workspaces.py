"""Workspaces: the folder that an agent's tools work in, its own or an attached one.

An agent's own folder is private, below `BONOBOT_VAR`, and has a quota in bytes and files. An
attached folder has no quota, and its content is private data. Changes are made under a lock of the
folder, so that the quota holds across processes.
"""

import asyncio
import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from django.conf import settings

from agents.builtin_tools.toolset_options import (
    AgentToolsets,
    Spec,
    build_toolbox,
    require_host_access,
)
from agents.models import Agent
from agents.models.agents import MAX_WORKSPACE_FILES
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.confined_folder import ConfinedFolder, FolderUsage, convert_os_error
from bonobot.core.crypto import key_files
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput, NotFound, Problem
from bonobot.core.process_cache import compute_once
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from mcp_servers.flow_labels import decode_labels

MAX_WORKSPACE_MIB = 1024 * 1024

SANDBOX_PATH = "/workspace"  # the workspace's path in the sandbox
MAX_THREADS = 8
# System folders: writing there changes the host.
SYSTEM_FOLDERS = ("/proc", "/sys", "/dev", "/run", "/boot", "/etc", "/usr", "/bin", "/sbin", "/lib")

_Result = TypeVar("_Result")


class QuotaExceeded(Problem):
    """The change exceeds the workspace's quota."""

    code = "quota_exceeded"
    status = 409
    title = "Workspace full"


@dataclass(frozen=True, slots=True)
class Workspace:
    """An agent's workspace; `attached` folders have no quota."""

    root: Path
    attached: bool
    max_bytes: int
    max_files: int

    def open(self) -> ConfinedFolder:
        """Return the open folder; raises `NotFound` if an attached one doesn't exist."""
        if not self.attached:
            key_files.ensure_private_folder(self.root)
        try:
            return ConfinedFolder(self.root)
        except OSError as error:
            raise NotFound(
                "The agent's folder can't be opened.",
                code="no_workspace",
                remedy="Ask its administrator to attach another folder or to check this one.",
            ) from error

    def measure_usage(self, folder: ConfinedFolder) -> FolderUsage:
        """Return the workspace's usage; zero for an attached folder."""
        return FolderUsage() if self.attached else folder.measure_usage(self.max_files)

    @contextmanager
    def lock(self, folder: ConfinedFolder) -> Iterator[None]:
        """Hold the folder's lock, which serializes changes of the workspace."""
        fcntl.flock(folder.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(folder.fd, fcntl.LOCK_UN)

    def require_room(self, folder: ConfinedFolder, added_bytes: int, added_files: int = 1) -> None:
        """Raise `QuotaExceeded` if the addition doesn't fit; call it under `lock`."""
        usage = self.measure_usage(folder)
        if self.attached or not (added_bytes > 0 or added_files > 0):
            return
        files, size = usage.file_count + added_files, usage.size + added_bytes
        if usage.is_partial or files > self.max_files or size > self.max_bytes:
            raise QuotaExceeded(
                format_message(
                    "The workspace limit is {max_bytes:,} bytes in {max_files:,} files "
                    "and folders. It contains {size:,} bytes in {files:,}.",
                    max_bytes=self.max_bytes,
                    max_files=self.max_files,
                    size=usage.size,
                    files=usage.file_count,
                ),
                remedy="Delete what is no longer needed, or request a larger workspace.",
            )


def build_workspace(
    organization_id: UUID, agent_id: UUID | None, toolbox: AgentToolsets
) -> Workspace:
    """Return the workspace of an agent; raises `NotFound` for calls without an agent."""
    if agent_id is None:
        raise NotFound("Only agents have a workspace.", code="no_workspace")
    return Workspace(
        root=Path(toolbox.folder) if toolbox.folder else get_own_folder(organization_id, agent_id),
        attached=bool(toolbox.folder),
        max_bytes=toolbox.max_bytes,
        max_files=toolbox.max_files,
    )


def get_own_folder(organization_id: UUID, agent_id: UUID) -> Path:
    """Return the path of the agent's own folder, which may not exist."""
    data_folder: Path = settings.BONOBOT_VAR
    return data_folder.resolve() / "workspaces" / str(organization_id) / str(agent_id)


def ensure_workspace_folder(organization_id: UUID, agent_id: UUID, folder: str = "") -> Path:
    """Return an agent's folder, created if missing: its root for servers that list roots.

    `folder` is the attached one, of the session or the agent; "" if there is none.
    """
    return (
        Path(folder)
        if folder
        else key_files.ensure_private_folder(get_own_folder(organization_id, agent_id))
    )


def delete_own_folder(organization_id: UUID, agent_id: UUID) -> None:
    """Delete an agent's own folder with its contents, never an attached one."""
    shutil.rmtree(get_own_folder(organization_id, agent_id), ignore_errors=True)


def clean_attached_folder(path: str) -> str:
    """Return the absolute path of a folder of this host, with links resolved.

    Raises `InvalidInput` if it doesn't exist, or is a system folder or one of Bonobot's.
    """
    folder = Path(path).expanduser()
    with suppress(OSError, RuntimeError):
        folder = folder.resolve()
    if "\0" in path or not folder.is_dir():
        raise _build_attach_error(path, "The folder doesn't exist", "Enter an existing folder.")
    own_folders = [Path(settings.BASE_DIR), Path(settings.BONOBOT_VAR).resolve(), Path(sys.prefix)]
    if any(
        folder.is_relative_to(reserved) or reserved.is_relative_to(folder)
        for reserved in own_folders
    ):
        detail = "It contains Bonobot's own files or is inside them"
        raise _build_attach_error(path, detail, "Attach a folder outside Bonobot's own files.")
    if folder == Path("/") or any(folder.is_relative_to(reserved) for reserved in SYSTEM_FOLDERS):
        raise _build_attach_error(
            path, "It is a system folder", "Attach a folder that contains only work files."
        )
    return str(folder)


def _build_attach_error(path: str, detail: str, remedy: str) -> InvalidInput:
    return InvalidInput(f"{detail}: {path[:200]!r}.", field="workspace_folder", remedy=remedy)


async def run_in_thread(
    function: Callable[..., _Result], *args: object, **kwargs: object
) -> _Result:
    """Run a blocking function in a separate thread pool, so slow disks block nothing else."""
    loop = asyncio.get_running_loop()
    call = partial(_call_converting_os_errors, function, *args, **kwargs)
    return await loop.run_in_executor(_get_thread_pool(os.getpid()), call)


def _call_converting_os_errors(
    function: Callable[..., _Result], *args: object, **kwargs: object
) -> _Result:
    try:
        return function(*args, **kwargs)
    except OSError as error:
        raise convert_os_error("the workspace", error) from error


@compute_once
def _get_thread_pool(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix=f"workspace-{pid}")


def clean_workspace_spec(principal: Principal, agent: Agent, spec: Spec) -> Spec:
    """Return the specification with its folder as it is stored.

    Raises `InvalidInput`, or `Forbidden` (`platform_admin_only`) for a newly attached folder.
    """
    if spec.workspace_folder and spec.workspace_folder != agent.workspace_folder:
        require_host_access(principal, "workspace_folder", "attach a folder of this host")
        spec = replace(spec, workspace_folder=clean_workspace_folder(agent, spec.workspace_folder))
    for name, maximum in (
        ("workspace_mib", MAX_WORKSPACE_MIB),
        ("workspace_files", MAX_WORKSPACE_FILES),
    ):
        value = getattr(spec, name)
        if value is not None and not 1 <= value <= maximum:
            raise InvalidInput(
                format_message("{value} is out of range.", value=value),
                field=name,
                remedy=format_message("Enter a number from 1 to {most:,}.", most=maximum),
            )
    return spec


def describe_workspace(agent: Agent) -> dict[str, Any]:
    """Return the workspace's folder, labels, usage and limits. Blocks while counting files."""
    workspace = build_workspace(agent.organization_id, agent.pk, build_toolbox(agent))
    description = {
        "folder": agent.workspace_folder,
        "attached": workspace.attached,
        "labels": list(decode_labels(agent.workspace_labels)),
    }
    if workspace.attached:
        return description | dict.fromkeys(("bytes", "files", "max_bytes", "max_files"))
    limits = {"max_bytes": workspace.max_bytes, "max_files": workspace.max_files}
    if not workspace.root.is_dir():
        return description | limits | {"bytes": 0, "files": 0}
    with workspace.open() as folder:
        usage = workspace.measure_usage(folder)
    return description | limits | {"bytes": usage.size, "files": usage.file_count}


def clear_workspace(principal: Principal, agent: Agent) -> None:
    """Delete the contents and flow labels of an agent's own workspace.

    Raises `Conflict` (`attached_folder`) if the folder is attached.
    """
    principal.require(Action.MANAGE_AGENTS)
    if agent.workspace_folder:
        raise Conflict(
            "The agent uses an attached folder, which can't be deleted here.",
            code="attached_folder",
            remedy="Detach the folder first, or delete its contents on the host.",
        )
    workspace = build_workspace(agent.organization_id, agent.pk, build_toolbox(agent))
    with record_change(
        **describe_row("agent", agent), actor=principal.actor, action="workspace_cleared"
    ):
        with workspace.open() as folder, workspace.lock(folder):
            for entry in folder.list_entries("", MAX_WORKSPACE_FILES)[0]:
                folder.delete(entry.path, with_contents=True)
        Agent.objects.filter(pk=agent.pk).update(workspace_labels=0)
    agent.workspace_labels = 0


def clean_workspace_folder(agent: Agent, path: str) -> str:
    """Return the folder; it may be another agent's, but not be inside or contain one.

    An agent that can rename folders above another's workspace could replace it with a link.
    """
    folder = Path(clean_attached_folder(path))
    for other_folder in _iterate_other_folders(agent):
        if other_folder != folder and (
            other_folder.is_relative_to(folder) or folder.is_relative_to(other_folder)
        ):
            raise InvalidInput(
                format_message(
                    "{folder!r} is inside another agent's folder, or contains it.",
                    folder=str(folder),
                ),
                code="nested_folders",
                field="workspace_folder",
                remedy="Attach a folder that doesn't overlap with it, or attach the same folder.",
            )
    return str(folder)


def _iterate_other_folders(agent: Agent) -> Iterator[Path]:
    other_agents = Agent.objects.exclude(pk=agent.pk).exclude(workspace_folder="")
    for folder in other_agents.values_list("workspace_folder", flat=True).distinct():
        yield Path(folder)
