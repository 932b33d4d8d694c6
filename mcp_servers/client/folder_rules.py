"""Which folders of this machine a stdio server may use.

System folders are never allowed, and of Bonobot's folders only the organization's own workspace.
Links and `..` are resolved before the check. Servers of an organization may share writable folders,
so a checked path may lead elsewhere by the time bubblewrap mounts it: each folder is opened part by
part, never through a symbolic link, and bubblewrap mounts the open descriptor.
"""

import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bonobot.core.i18n.messages import TranslatableMessage, format_message
from mcp_servers.client.seccomp_filter import can_filter_modes, open_mode_filter

# Denied with everything below them.
SYSTEM_FOLDERS = (
    *("/etc", "/proc", "/sys", "/dev", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *("/libx32", "/boot", "/run", "/snap", "/System", "/Library", "/private/etc"),
    *("/var/lib", "/var/run", "/var/log", "/var/spool", "/var/cache", "/var/backups"),
)
# Denied themselves, not the folders below them.
EXACT_FOLDERS = (
    *("/", "/root", "/home", "/var", "/opt", "/srv", "/mnt", "/media", "/Users"),
    *("/tmp", "/var/tmp"),  # noqa: S108 - refused
)


HOME_PARENTS = ("/home", "/Users")


OPEN_FLAGS = (
    os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC if hasattr(os, "O_PATH") else 0
)


@dataclass(frozen=True)
class FolderRule:
    """Folders denied in addition to the system's, and folders allowed within those."""

    denied: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()

    def find_refusal(self, folder: str) -> TranslatableMessage | None:
        """Return why a folder is denied, as the end of a sentence, or None."""
        if "\x00" in folder:
            return format_message("it contains a NUL character")
        if not folder.startswith("/"):
            return format_message("it must be an absolute path")
        try:
            real = Path(folder).resolve()
        except (OSError, RuntimeError):
            return format_message("its symbolic links can't be resolved")
        if any(
            real.is_relative_to(Path(allowed_folder).resolve()) for allowed_folder in self.allowed
        ):
            return None
        if str(real) in EXACT_FOLDERS or any(
            real.is_relative_to(system_folder) for system_folder in SYSTEM_FOLDERS
        ):
            return format_message("it is a system folder")
        if _is_hidden_in_a_home(real):
            return format_message(
                "it is a hidden folder in a home directory, which can contain keys"
            )
        if any(real.is_relative_to(Path(denied_folder).resolve()) for denied_folder in self.denied):
            return format_message("it belongs to Bonobot or to another organization")
        return None


SYSTEM_ONLY = FolderRule()


def _is_hidden_in_a_home(real: Path) -> bool:
    parts = real.parts
    home = 2 if parts[1:2] == ("root",) else 3 if f"/{parts[1]}" in HOME_PARENTS else 0
    return bool(home) and len(parts) > home and parts[home].startswith(".")


def list_mounted_folders(command: str, args: tuple[str, ...]) -> tuple[str, ...]:
    """Return the host folders that the arguments of `docker run` mount."""
    if Path(command).name not in ("docker", "podman", "nerdctl"):
        return ()
    folders = []
    for index, arg in enumerate(args):
        option, equals, value = arg.partition("=")
        if not equals:
            value = args[index + 1] if index + 1 < len(args) else ""
        if option in ("-v", "--volume"):
            folders.append(value.partition(":")[0])
        elif arg.startswith("-v/"):
            folders.append(arg[2:].partition(":")[0])
        elif option == "--mount":
            mount_options = dict(part.partition("=")[::2] for part in value.split(","))
            folders.append(mount_options.get("source") or mount_options.get("src") or "")
    return tuple(folder for folder in folders if folder.startswith(("/", ".")))


class FolderReplaced(Exception):
    """A checked folder no longer exists or was replaced by a link."""


class OpenFolders:
    """Open folders by path, and the filter of modes, if there is one for this machine."""

    def __init__(self, paths: Iterable[str]) -> None:
        """Open absolute, resolved paths; raises `FolderReplaced`."""
        self._stack = ExitStack()
        self._descriptors: dict[str, int] = {}
        self.mode_filter: int | None = None
        try:
            if can_filter_modes():
                self.mode_filter = open_mode_filter()
                self._stack.callback(os.close, self.mode_filter)
            for path in dict.fromkeys(paths):
                self._descriptors[path] = self._open_folder(path)
        except BaseException:
            self.close()
            raise

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that a child process inherits."""
        filters = () if self.mode_filter is None else (self.mode_filter,)
        return (*self._descriptors.values(), *filters)

    def get_source_path(self, path: str) -> str:
        """Return the path of the folder for a child process that inherits it."""
        return f"/proc/self/fd/{self._descriptors[path]}"

    def close(self) -> None:
        """Close all of them."""
        self._stack.close()

    def _open_folder(self, path: str) -> int:
        descriptor = os.open("/", OPEN_FLAGS)
        try:
            for part in path.split("/"):
                if part:
                    child = os.open(part, OPEN_FLAGS, dir_fd=descriptor)
                    os.close(descriptor)
                    descriptor = child
        except OSError as error:
            os.close(descriptor)
            raise FolderReplaced(
                format_message(
                    "`{path}` is no longer a folder, or it was replaced by a symbolic link",
                    path=path,
                )
            ) from error
        self._stack.callback(os.close, descriptor)
        return descriptor
