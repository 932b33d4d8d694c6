"""File access confined to one folder.

A path is opened part by part, each relative to the parent's descriptor and never through a
symbolic link, so a link, mount or device that is swapped in between check and open is refused.
`..` and absolute paths are refused before anything is opened. Hard links are refused too, because
their other name may be outside the folder.
"""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, NotFound, Problem

LONGEST_PATH = 4096  # bytes, as the system has it
LONGEST_PART = 255
DEEPEST = 64


class PathRefused(Problem):
    """A path that can't be used.

    Codes: `bad_path`, `outside_workspace`, `symbolic_link`, `hard_link`, `not_a_file`,
    `not_a_folder`, `other_filesystem`, `too_large`, `not_possible`.
    """

    code = "bad_path"
    status = 400
    title = "The path can't be used"


def split_path(path: str) -> tuple[str, ...]:
    """Return the parts of a path relative to the folder; () is the folder itself.

    Raises `PathRefused` for absolute paths, `..`, and paths that are too long or too deep.
    """
    if "\0" in path:
        raise build_bad_path_error(path, "It holds a NUL character.")
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        raise build_bad_path_error(path, "It isn't Unicode text.") from None
    if path.startswith("/"):
        raise PathRefused(
            format_message("`{path}` is an absolute path.", path=path[:200]),
            code="outside_workspace",
            field="path",
            remedy="Write paths relative to the workspace, such as `notes/today.md`.",
        )
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise PathRefused(
            format_message("`{path}` goes up with `..`.", path=path[:200]),
            code="outside_workspace",
            field="path",
            remedy="Write paths relative to the workspace, without `..`.",
        )
    too_long = len(raw) > LONGEST_PATH or any(len(p.encode()) > LONGEST_PART for p in parts)
    if too_long or len(parts) > DEEPEST:
        raise build_bad_path_error(
            path,
            format_message("It is too long, or deeper than {deepest} folders.", deepest=DEEPEST),
        )
    return parts


def check_hard_links(path: str, found: os.stat_result) -> None:
    """Raise `PathRefused` if a file has more than one name."""
    if found.st_nlink > 1:
        raise PathRefused(
            format_message(
                "`{path}` has {st_nlink} names (hard links), and others may be outside.",
                path=path,
                st_nlink=found.st_nlink,
            ),
            code="hard_link",
            field="path",
            remedy="Have whoever keeps the folder make it a file of its own.",
        )


def build_symlink_error(path: str) -> PathRefused:
    """Return the error for a symbolic link."""
    return PathRefused(
        format_message("`{path}` is a symbolic link, and links are not followed.", path=path),
        code="symbolic_link",
        field="path",
        remedy="Name the file or folder itself.",
    )


def build_other_filesystem_error(path: str) -> PathRefused:
    """Return the error for a path on another file system."""
    return PathRefused(
        format_message("`{path}` is on another file system.", path=path),
        code="other_filesystem",
        field="path",
        remedy="Only files of the workspace's own file system are used.",
    )


def build_not_found_error(path: str) -> NotFound:
    """Return the error for a path that doesn't exist."""
    return NotFound(
        format_message("There is nothing at `{path}`.", path=path),
        field="path",
        remedy="`list_files` shows what there is.",
    )


def convert_os_error(path: str, error: OSError) -> Problem:
    """Return the problem for an `OSError` at `path`."""
    if error.errno == errno.ENOENT:
        return build_not_found_error(path)
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return build_symlink_error(path)
    if error.errno == errno.ENOTDIR:
        return PathRefused(
            format_message("`{path}` is no folder.", path=path),
            code="not_a_folder",
            field="path",
            remedy="`list_files` shows what there is.",
        )
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        return Conflict(
            format_message("The folder `{path}` isn't empty.", path=path),
            code="not_empty",
            field="path",
            remedy="Set `with_contents` to delete everything in it.",
        )
    return PathRefused(
        f"`{path}`: {error.strerror or 'it did not work'}.",
        code="not_possible",
        field="path",
        remedy="The system refuses it; use another path.",
    )


def build_bad_path_error(path: str, why: str) -> PathRefused:
    """Return the error for a malformed path."""
    shown = path[:200].encode("utf-8", "replace").decode()
    return PathRefused(
        format_message("`{shown}` can't be used as a path. {why}", shown=shown, why=why),
        field="path",
        remedy="Write a path relative to the workspace, such as `notes/today.md`.",
    )


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """An entry at a path; `kind` is file, folder, link or other.

    `size` is in bytes, `modified_ns` in nanoseconds since 1970; `link_count` counts hard links.
    """

    path: str
    kind: str
    size: int = 0
    changed: int = 0
    links: int = 1


@dataclass(slots=True)
class FolderUsage:
    """The bytes and files of a folder; `is_partial` if counting stopped early."""

    size: int = 0
    files: int = 0
    more: bool = False


class ConfinedFolder:
    """An open folder and the operations inside it. Blocks; close it after use."""

    def __init__(self, root: Path) -> None:
        """`root` is absolute, without symbolic links; raises `OSError` if it doesn't exist."""
        self._fd = _open_root(root)
        self._device = os.fstat(self._fd).st_dev

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    @property
    def fd(self) -> int:
        """The descriptor of the folder itself."""
        return self._fd

    def look(self, path: str) -> FolderEntry | None:
        """Return the entry at `path`, or None."""
        parts = split_path(path)
        if not parts:
            return _build_entry("", os.fstat(self._fd))
        try:
            with self._parent(path, parts) as (parent, name):
                return _build_entry(
                    "/".join(parts), os.stat(name, dir_fd=parent, follow_symlinks=False)
                )
        except (NotFound, FileNotFoundError):
            return None

    def read(self, path: str, most: int) -> bytes:
        """Return a file's bytes; raises `PathRefused` (`too_large`) above `max_bytes`."""
        with self.opened(path) as fd:
            size = os.fstat(fd).st_size
            data = b"" if size > most else _read(fd, most + 1)
        if size > most or len(data) > most:
            raise PathRefused(
                format_message(
                    "`{path}` has {size:,} bytes; at most {most:,} are read.",
                    path=path,
                    size=size,
                    most=most,
                ),
                code="too_large",
                field="path",
                remedy="Search it, or work on a smaller file.",
            )
        return data

    @contextmanager
    def opened(self, path: str) -> Iterator[int]:
        """Open a regular file for reading."""
        parts = split_path(path)
        with self._parent(path, parts) as (parent, name):
            fd = self._open_file(path, parent, name)
            try:
                yield fd
            finally:
                os.close(fd)

    def write(self, path: str, data: bytes, *, make_folders: bool = False) -> bool:
        """Create a file or replace it atomically; return whether it is new."""
        parts = split_path(path)
        if make_folders and len(parts) > 1:
            self.make_folder("/".join(parts[:-1]))
        with self._parent(path, parts) as (parent, name):
            mode = self._mode_of(path, parent, name)
            made = f".bonobot-{secrets.token_hex(8)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
            fd = os.open(made, flags, 0o600, dir_fd=parent)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fchmod(file.fileno(), 0o640 if mode is None else mode)
                    os.fsync(file.fileno())
                os.replace(made, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(OSError):
                    os.unlink(made, dir_fd=parent)
                raise
        return mode is None

    def make_folder(self, path: str) -> int:
        """Create a folder and its missing parents; return how many were created."""
        parts, made, fd = split_path(path), 0, os.dup(self._fd)
        try:
            for depth, part in enumerate(parts):
                with suppress(FileExistsError):
                    os.mkdir(part, 0o750, dir_fd=fd)
                    made += 1
                inner = self._enter("/".join(parts[: depth + 1]), fd, part)
                os.close(fd)
                fd = inner
        finally:
            os.close(fd)
        return made

    def delete(self, path: str, *, with_contents: bool = False) -> FolderEntry:
        """Delete a file, a link itself, or a folder; a non-empty one only `with_contents`."""
        parts = split_path(path)
        with self._parent(path, parts) as (parent, name):
            try:
                found = _build_entry(path, os.stat(name, dir_fd=parent, follow_symlinks=False))
            except FileNotFoundError:
                raise build_not_found_error(path) from None
            try:
                if found.kind != "folder":
                    os.unlink(name, dir_fd=parent)
                elif with_contents:
                    shutil.rmtree(name, dir_fd=parent)
                else:
                    os.rmdir(name, dir_fd=parent)
            except OSError as error:
                raise convert_os_error(path, error) from error
        return found

    def move(self, path: str, target: str, *, overwrite: bool = False) -> None:
        """Move or rename a file or folder within the folder."""
        source, goal = split_path(path), split_path(target)
        with self._parent(path, source) as (old, name), self._parent(target, goal) as (new, named):
            found = self._checked(path, old, name)
            if stat.S_ISREG(found.st_mode):
                check_hard_links(path, found)
            try:
                there = os.stat(named, dir_fd=new, follow_symlinks=False)
            except FileNotFoundError:
                there = None
            if there is not None and not (overwrite and stat.S_ISREG(there.st_mode)):
                raise Conflict(
                    format_message("`{target}` is there already.", target=target),
                    code="already_there",
                    field="to",
                    remedy="Choose another name, or set `overwrite` for a file.",
                )
            try:
                os.rename(name, named, src_dir_fd=old, dst_dir_fd=new)
            except OSError as error:
                raise convert_os_error(path, error) from error

    def children(self, path: str, most: int) -> tuple[list[FolderEntry], bool]:
        """Return up to `max_entries` entries of a folder by name, and whether there are more."""
        with self.folder(path) as fd, os.scandir(fd) as found:
            names: list[str] = []
            for one in found:
                if len(names) == most:
                    return self._entries(path, fd, names), True
                names.append(one.name)
            return self._entries(path, fd, names), False

    def walk(self, path: str = "", *, skip: Sequence[str] = ()) -> Iterator[FolderEntry]:
        """Yield every entry inside a folder, parents first; links are not followed.

        Folders named in `skip` are not entered. Entries deleted meanwhile are left out.
        """
        base = "/".join(split_path(path))
        waiting = [base]
        while waiting:
            at = waiting.pop()
            try:
                with self.folder(at) as fd, os.scandir(fd) as found:
                    entries = self._entries(at, fd, [one.name for one in found])
            except (NotFound, PathRefused, OSError):
                if at == base:
                    raise
                continue
            yield from entries
            inner = [e.path for e in entries if e.kind == "folder"]
            waiting += [p for p in reversed(inner) if p.rpartition("/")[2] not in skip]

    def usage(self, most_files: int) -> FolderUsage:
        """Count files and bytes; stops after `max_files` and at the depth limit."""
        found = FolderUsage()
        for entry in self.walk():
            found.files += 1
            found.size += entry.size
            deep = entry.kind == "folder" and entry.path.count("/") >= DEEPEST - 1
            if deep or found.files > most_files:
                found.more = True
                break
        return found

    @contextmanager
    def folder(self, path: str) -> Iterator[int]:
        """Open a folder inside this one."""
        parts, fd = split_path(path), os.dup(self._fd)
        try:
            for depth, part in enumerate(parts):
                inner = self._enter("/".join(parts[: depth + 1]), fd, part)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def _parent(self, path: str, parts: tuple[str, ...]) -> Iterator[tuple[int, str]]:
        if not parts:
            raise build_bad_path_error(path, "It names the workspace itself.")
        with self.folder("/".join(parts[:-1])) as fd:
            yield fd, parts[-1]

    def _enter(self, path: str, parent: int, name: str) -> int:
        try:
            fd = os.open(name, _FOLDER, dir_fd=parent)
        except OSError as error:
            raise self._why(path, parent, name, error) from error
        if os.fstat(fd).st_dev != self._device:
            os.close(fd)
            raise build_other_filesystem_error(path)
        return fd

    def _open_file(self, path: str, parent: int, name: str) -> int:
        self._regular(path, self._checked(path, parent, name))
        try:
            fd = os.open(name, os.O_RDONLY | _FILE, dir_fd=parent)
        except OSError as error:
            raise self._why(path, parent, name, error) from error
        try:
            # Check the opened file again: the name may have been replaced since the first check.
            self._regular(path, os.fstat(fd))
        except PathRefused:
            os.close(fd)
            raise
        return fd

    def _mode_of(self, path: str, parent: int, name: str) -> int | None:
        """Return the permission bits of an existing file, or None."""
        try:
            there = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None
        self._regular(path, there)
        return stat.S_IMODE(there.st_mode) & 0o777

    def _checked(self, path: str, parent: int, name: str) -> os.stat_result:
        try:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            raise build_not_found_error(path) from None
        if stat.S_ISLNK(found.st_mode):
            raise build_symlink_error(path)
        if found.st_dev != self._device:
            raise build_other_filesystem_error(path)
        return found

    def _regular(self, path: str, found: os.stat_result) -> None:
        if stat.S_ISLNK(found.st_mode):
            raise build_symlink_error(path)
        if stat.S_ISDIR(found.st_mode):
            raise PathRefused(
                format_message("`{path}` is a folder.", path=path),
                code="not_a_file",
                field="path",
                remedy="Name a file in it; `list_files` shows them.",
            )
        if not stat.S_ISREG(found.st_mode):
            raise PathRefused(
                format_message("`{path}` is no regular file.", path=path),
                code="not_a_file",
                field="path",
                remedy="Devices, pipes and sockets are neither read nor written.",
            )
        if found.st_dev != self._device:
            raise build_other_filesystem_error(path)
        check_hard_links(path, found)

    def _why(self, path: str, parent: int, name: str, error: OSError) -> Problem:
        """Return the problem for a failed open; distinguishes symbolic links."""
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            with suppress(OSError):
                found = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if stat.S_ISLNK(found.st_mode):
                    return build_symlink_error(path)
        return convert_os_error(path, error)

    def _entries(self, path: str, fd: int, names: list[str]) -> list[FolderEntry]:
        base = "/".join(split_path(path))
        found = []
        for name in sorted(names):
            full = f"{base}/{name}" if base else name
            with suppress(FileNotFoundError):
                entry = _build_entry(full, os.stat(name, dir_fd=fd, follow_symlinks=False))
                found.append(entry)
        return found


def _open_root(root: Path) -> int:
    fd = os.open("/", _FOLDER)
    try:
        for part in root.parts[1:]:
            inner = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
    except OSError:
        os.close(fd)
        raise
    return fd


def _read(fd: int, most: int) -> bytes:
    found, left = [], most
    while left and (piece := os.read(fd, min(left, 1 << 20))):
        found.append(piece)
        left -= len(piece)
    return b"".join(found)


def _build_entry(path: str, found: os.stat_result) -> FolderEntry:
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISLNK, "link"))
    kind = next((name for test, name in kinds if test(found.st_mode)), "other")
    size = found.st_size if kind == "file" else 0
    return FolderEntry(path, kind, size, found.st_mtime_ns, found.st_nlink)
