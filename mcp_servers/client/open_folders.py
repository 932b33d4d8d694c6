"""Folders of a sandbox, opened so that they can't be replaced by links.

Servers of an organization may share writable folders. A checked path may lead elsewhere by the time
bubblewrap mounts it, so each folder is opened part by part, never through a symbolic link, and
bubblewrap mounts the open descriptor.
"""

import os
from collections.abc import Iterable
from contextlib import ExitStack

from bonobot.core.i18n.messages import format_message

OPEN_FLAGS = (
    os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC if hasattr(os, "O_PATH") else 0
)


class FolderReplaced(Exception):
    """A checked folder no longer exists or was replaced by a link."""


class OpenFolders:
    """Open folders by path."""

    def __init__(self, paths: Iterable[str]) -> None:
        """Open absolute, resolved paths; raises `FolderReplaced`."""
        self._stack = ExitStack()
        self._descriptors: dict[str, int] = {}
        try:
            for path in dict.fromkeys(paths):
                self._descriptors[path] = self._open_folder(path)
        except BaseException:
            self.close()
            raise

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that a child process inherits."""
        return tuple(self._descriptors.values())

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
