"""Folders that a sandbox shows, opened so that nobody can put a link in their place meanwhile.

The server of an organization writes in the folders that the next one is given. A path that was
checked may lead elsewhere by the time bubblewrap mounts it, so each folder is opened part by part,
never through a symbolic link, and bubblewrap mounts what is open.
"""

import os
from collections.abc import Iterable
from contextlib import ExitStack

from bonobot.core.i18n.messages import format_message

PART = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC if hasattr(os, "O_PATH") else 0


class FolderReplaced(Exception):
    """A folder that was checked isn't there any more, or a link is in its place."""


class OpenFolders:
    """Folders by their paths; `close` closes them."""

    def __init__(self, paths: Iterable[str]) -> None:
        """Open absolute paths that were resolved before; raises `FolderReplaced`."""
        self._stack = ExitStack()
        self._descriptors: dict[str, int] = {}
        try:
            for path in dict.fromkeys(paths):
                self._descriptors[path] = self._open(path)
        except BaseException:
            self.close()
            raise

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return what a child process inherits."""
        return tuple(self._descriptors.values())

    def source(self, path: str) -> str:
        """Return how a child process that inherits the folder names it."""
        return f"/proc/self/fd/{self._descriptors[path]}"

    def close(self) -> None:
        """Close all of them."""
        self._stack.close()

    def _open(self, path: str) -> int:
        found = os.open("/", PART)
        try:
            for part in path.split("/"):
                if part:
                    below = os.open(part, PART, dir_fd=found)
                    os.close(found)
                    found = below
        except OSError as error:
            os.close(found)
            raise FolderReplaced(
                format_message("`{path}` isn't a folder any more, or a link leads to it", path=path)
            ) from error
        self._stack.callback(os.close, found)
        return found
