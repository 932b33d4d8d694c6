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

MAX_PATH_BYTES = 4096  # bytes, as the system has it
MAX_NAME_BYTES = 255
MAX_DEPTH = 64
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK


class PathRefused(Problem):
    """A path that can't be used.

    Codes: `bad_path`, `outside_workspace`, `symbolic_link`, `hard_link`, `not_a_file`,
    `not_a_folder`, `other_filesystem`, `too_large`, `not_possible`.
    """

    code = "bad_path"
    status = 400
    title = "Path not valid"


def split_path(path: str) -> tuple[str, ...]:
    """Return the parts of a path relative to the folder; () is the folder itself.

    Raises `PathRefused` for absolute paths, `..`, and paths that are too long or too deep.
    """
    if "\0" in path:
        raise build_bad_path_error(path, "It contains a NUL character.")
    try:
        encoded_path = path.encode()
    except UnicodeEncodeError:
        raise build_bad_path_error(path, "It isn't Unicode text.") from None
    if path.startswith("/"):
        raise PathRefused(
            format_message("`{path}` is an absolute path.", path=path[:200]),
            code="outside_workspace",
            field="path",
            remedy="Use paths relative to the workspace, such as `notes/today.md`.",
        )
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise PathRefused(
            format_message("`{path}` contains `..`.", path=path[:200]),
            code="outside_workspace",
            field="path",
            remedy="Use paths relative to the workspace, without `..`.",
        )
    too_long = len(encoded_path) > MAX_PATH_BYTES or any(
        len(p.encode()) > MAX_NAME_BYTES for p in parts
    )
    if too_long or len(parts) > MAX_DEPTH:
        raise build_bad_path_error(
            path,
            format_message(
                "It is too long or more than {deepest} folders deep.", deepest=MAX_DEPTH
            ),
        )
    return parts


def check_hard_links(path: str, stat_result: os.stat_result) -> None:
    """Raise `PathRefused` if a file has more than one name."""
    if stat_result.st_nlink > 1:
        raise PathRefused(
            format_message(
                "`{path}` has {count} names (hard links), and some might be outside the workspace.",
                path=path,
                count=stat_result.st_nlink,
            ),
            code="hard_link",
            field="path",
            remedy="Ask the owner of the folder to replace the hard link with a separate file.",
        )


def build_symlink_error(path: str) -> PathRefused:
    """Return the error for a symbolic link."""
    return PathRefused(
        format_message("`{path}` is a symbolic link. Symbolic links aren't followed.", path=path),
        code="symbolic_link",
        field="path",
        remedy="Specify the file or folder itself.",
    )


def build_other_filesystem_error(path: str) -> PathRefused:
    """Return the error for a path on another file system."""
    return PathRefused(
        format_message("`{path}` is on another file system.", path=path),
        code="other_filesystem",
        field="path",
        remedy="Use files on the workspace's own file system.",
    )


def build_not_found_error(path: str) -> NotFound:
    """Return the error for a path that doesn't exist."""
    return NotFound(
        format_message("`{path}` doesn't exist.", path=path),
        field="path",
        remedy="Run `list_files` to see the available files.",
    )


def convert_os_error(path: str, error: OSError) -> Problem:
    """Return the problem for an `OSError` at `path`."""
    if error.errno == errno.ENOENT:
        return build_not_found_error(path)
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return build_symlink_error(path)
    if error.errno == errno.ENOTDIR:
        return PathRefused(
            format_message("`{path}` isn't a folder.", path=path),
            code="not_a_folder",
            field="path",
            remedy="Run `list_files` to see the available files.",
        )
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        return Conflict(
            format_message("The folder `{path}` isn't empty.", path=path),
            code="not_empty",
            field="path",
            remedy="Set `with_contents` to delete everything in it.",
        )
    return PathRefused(
        f"`{path}`: {error.strerror or 'the operation failed'}.",
        code="not_possible",
        field="path",
        remedy="The system rejected it. Use another path.",
    )


def build_bad_path_error(path: str, reason: str) -> PathRefused:
    printable_path = path[:200].encode("utf-8", "replace").decode()
    return PathRefused(
        format_message("`{shown}` isn't a valid path. {why}", shown=printable_path, why=reason),
        field="path",
        remedy="Use a path relative to the workspace, such as `notes/today.md`.",
    )


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """An entry at a path; `kind` is file, folder, link or other.

    `size` is in bytes, `modified_ns` in nanoseconds since 1970; `link_count` counts hard links.
    """

    path: str
    kind: str
    size: int = 0
    modified_ns: int = 0
    link_count: int = 1


@dataclass(slots=True)
class FolderUsage:
    """The bytes and files of a folder; `is_partial` if counting stopped early."""

    size: int = 0
    file_count: int = 0
    is_partial: bool = False


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

    def find_entry(self, path: str) -> FolderEntry | None:
        """Return the entry at `path`, or None."""
        parts = split_path(path)
        if not parts:
            return _build_entry("", os.fstat(self._fd))
        try:
            with self._open_parent(path, parts) as (parent, name):
                return _build_entry(
                    "/".join(parts), os.stat(name, dir_fd=parent, follow_symlinks=False)
                )
        except (NotFound, FileNotFoundError):
            return None

    def read(self, path: str, max_bytes: int) -> bytes:
        """Return a file's bytes; raises `PathRefused` (`too_large`) above `max_bytes`."""
        with self.open_for_reading(path) as fd:
            size = os.fstat(fd).st_size
            data = b"" if size > max_bytes else _read_bytes(fd, max_bytes + 1)
        if size > max_bytes or len(data) > max_bytes:
            raise PathRefused(
                format_message(
                    "`{path}` has {size:,} bytes. The limit is {most:,} bytes.",
                    path=path,
                    size=size,
                    most=max_bytes,
                ),
                code="too_large",
                field="path",
                remedy="Search the file, or use a smaller file.",
            )
        return data

    @contextmanager
    def open_for_reading(self, path: str) -> Iterator[int]:
        """Open a regular file for reading."""
        parts = split_path(path)
        with self._open_parent(path, parts) as (parent, name):
            fd = self._open_file(path, parent, name)
            try:
                yield fd
            finally:
                os.close(fd)

    def write(self, path: str, data: bytes, *, create_parents: bool = False) -> bool:
        """Create a file or replace it atomically; return whether it is new."""
        parts = split_path(path)
        if create_parents and len(parts) > 1:
            self.create_folder("/".join(parts[:-1]))
        with self._open_parent(path, parts) as (parent, name):
            mode = self._find_mode(path, parent, name)
            temporary_name = f".bonobot-{secrets.token_hex(8)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE_FLAGS
            fd = os.open(temporary_name, flags, 0o600, dir_fd=parent)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fchmod(file.fileno(), 0o640 if mode is None else mode)
                    os.fsync(file.fileno())
                os.replace(temporary_name, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary_name, dir_fd=parent)
                raise
        return mode is None

    def create_folder(self, path: str) -> int:
        """Create a folder and its missing parents; return how many were created."""
        parts, created_count, fd = split_path(path), 0, os.dup(self._fd)
        try:
            for depth, part in enumerate(parts):
                with suppress(FileExistsError):
                    os.mkdir(part, 0o750, dir_fd=fd)
                    created_count += 1
                child_fd = self._open_subfolder("/".join(parts[: depth + 1]), fd, part)
                os.close(fd)
                fd = child_fd
        finally:
            os.close(fd)
        return created_count

    def delete(self, path: str, *, with_contents: bool = False) -> FolderEntry:
        """Delete a file, a link itself, or a folder; a non-empty one only `with_contents`."""
        parts = split_path(path)
        with self._open_parent(path, parts) as (parent, name):
            try:
                entry = _build_entry(path, os.stat(name, dir_fd=parent, follow_symlinks=False))
            except FileNotFoundError:
                raise build_not_found_error(path) from None
            try:
                if entry.kind != "folder":
                    os.unlink(name, dir_fd=parent)
                elif with_contents:
                    shutil.rmtree(name, dir_fd=parent)
                else:
                    os.rmdir(name, dir_fd=parent)
            except OSError as error:
                raise convert_os_error(path, error) from error
        return entry

    def move(self, path: str, target: str, *, overwrite: bool = False) -> None:
        """Move or rename a file or folder within the folder."""
        source_parts, target_parts = split_path(path), split_path(target)
        with (
            self._open_parent(path, source_parts) as (source_parent, name),
            self._open_parent(target, target_parts) as (target_parent, target_name),
        ):
            source_stat = self._stat_entry(path, source_parent, name)
            if stat.S_ISREG(source_stat.st_mode):
                check_hard_links(path, source_stat)
            try:
                target_stat = os.stat(target_name, dir_fd=target_parent, follow_symlinks=False)
            except FileNotFoundError:
                target_stat = None
            if target_stat is not None and not (overwrite and stat.S_ISREG(target_stat.st_mode)):
                raise Conflict(
                    format_message("`{path}` already exists.", path=target),
                    code="already_exists",
                    field="to",
                    remedy="Use another name, or set `overwrite` to replace a file.",
                )
            try:
                os.rename(name, target_name, src_dir_fd=source_parent, dst_dir_fd=target_parent)
            except OSError as error:
                raise convert_os_error(path, error) from error

    def list_entries(self, path: str, max_entries: int) -> tuple[list[FolderEntry], bool]:
        """Return up to `max_entries` entries of a folder by name, and whether there are more."""
        with self.open_folder(path) as fd, os.scandir(fd) as scanner:
            names: list[str] = []
            for dir_entry in scanner:
                if len(names) == max_entries:
                    return self._build_entries(path, fd, names), True
                names.append(dir_entry.name)
            return self._build_entries(path, fd, names), False

    def iterate_entries(self, path: str = "", *, skip: Sequence[str] = ()) -> Iterator[FolderEntry]:
        """Yield every entry inside a folder, parents first; links are not followed.

        Folders named in `skip` are not entered. Entries deleted meanwhile are left out.
        """
        base = "/".join(split_path(path))
        pending = [base]
        while pending:
            folder_path = pending.pop()
            try:
                with self.open_folder(folder_path) as fd, os.scandir(fd) as scanner:
                    entries = self._build_entries(
                        folder_path, fd, [dir_entry.name for dir_entry in scanner]
                    )
            except (NotFound, PathRefused, OSError):
                if folder_path == base:
                    raise
                continue
            yield from entries
            subfolders = [e.path for e in entries if e.kind == "folder"]
            pending += [p for p in reversed(subfolders) if p.rpartition("/")[2] not in skip]

    def measure_usage(self, max_files: int) -> FolderUsage:
        """Count files and bytes; stops after `max_files` and at the depth limit."""
        folder_usage = FolderUsage()
        for entry in self.iterate_entries():
            folder_usage.file_count += 1
            folder_usage.size += entry.size
            is_too_deep = entry.kind == "folder" and entry.path.count("/") >= MAX_DEPTH - 1
            if is_too_deep or folder_usage.file_count > max_files:
                folder_usage.is_partial = True
                break
        return folder_usage

    @contextmanager
    def open_folder(self, path: str) -> Iterator[int]:
        parts, fd = split_path(path), os.dup(self._fd)
        try:
            for depth, part in enumerate(parts):
                child_fd = self._open_subfolder("/".join(parts[: depth + 1]), fd, part)
                os.close(fd)
                fd = child_fd
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def _open_parent(self, path: str, parts: tuple[str, ...]) -> Iterator[tuple[int, str]]:
        if not parts:
            raise build_bad_path_error(path, "It refers to the workspace itself.")
        with self.open_folder("/".join(parts[:-1])) as fd:
            yield fd, parts[-1]

    def _open_subfolder(self, path: str, parent: int, name: str) -> int:
        try:
            fd = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
        except OSError as error:
            raise self._build_open_error(path, parent, name, error) from error
        if os.fstat(fd).st_dev != self._device:
            os.close(fd)
            raise build_other_filesystem_error(path)
        return fd

    def _open_file(self, path: str, parent: int, name: str) -> int:
        self._check_regular_file(path, self._stat_entry(path, parent, name))
        try:
            fd = os.open(name, os.O_RDONLY | _FILE_FLAGS, dir_fd=parent)
        except OSError as error:
            raise self._build_open_error(path, parent, name, error) from error
        try:
            # Check the opened file again: the name may have been replaced since the first check.
            self._check_regular_file(path, os.fstat(fd))
        except PathRefused:
            os.close(fd)
            raise
        return fd

    def _find_mode(self, path: str, parent: int, name: str) -> int | None:
        """Return the permission bits of an existing file, or None."""
        try:
            stat_result = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None
        self._check_regular_file(path, stat_result)
        return stat.S_IMODE(stat_result.st_mode) & 0o777

    def _stat_entry(self, path: str, parent: int, name: str) -> os.stat_result:
        try:
            stat_result = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            raise build_not_found_error(path) from None
        if stat.S_ISLNK(stat_result.st_mode):
            raise build_symlink_error(path)
        if stat_result.st_dev != self._device:
            raise build_other_filesystem_error(path)
        return stat_result

    def _check_regular_file(self, path: str, stat_result: os.stat_result) -> None:
        if stat.S_ISLNK(stat_result.st_mode):
            raise build_symlink_error(path)
        if stat.S_ISDIR(stat_result.st_mode):
            raise PathRefused(
                format_message("`{path}` is a folder.", path=path),
                code="not_a_file",
                field="path",
                remedy="Use a file in this folder. Run `list_files` to see its files.",
            )
        if not stat.S_ISREG(stat_result.st_mode):
            raise PathRefused(
                format_message("`{path}` isn't a regular file.", path=path),
                code="not_a_file",
                field="path",
                remedy="Devices, pipes, and sockets can't be read or written.",
            )
        if stat_result.st_dev != self._device:
            raise build_other_filesystem_error(path)
        check_hard_links(path, stat_result)

    def _build_open_error(self, path: str, parent: int, name: str, error: OSError) -> Problem:
        """Return the problem for a failed open; distinguishes symbolic links."""
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            with suppress(OSError):
                stat_result = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if stat.S_ISLNK(stat_result.st_mode):
                    return build_symlink_error(path)
        return convert_os_error(path, error)

    def _build_entries(self, path: str, fd: int, names: list[str]) -> list[FolderEntry]:
        base = "/".join(split_path(path))
        entries = []
        for name in sorted(names):
            full = f"{base}/{name}" if base else name
            with suppress(FileNotFoundError):
                entry = _build_entry(full, os.stat(name, dir_fd=fd, follow_symlinks=False))
                entries.append(entry)
        return entries


def _open_root(root: Path) -> int:
    fd = os.open("/", _FOLDER_FLAGS)
    try:
        for part in root.parts[1:]:
            child_fd = os.open(part, _FOLDER_FLAGS, dir_fd=fd)
            os.close(fd)
            fd = child_fd
    except OSError:
        os.close(fd)
        raise
    return fd


def _read_bytes(fd: int, max_bytes: int) -> bytes:
    chunks, remaining = [], max_bytes
    while remaining and (chunk := os.read(fd, min(remaining, 1 << 20))):
        chunks.append(chunk)
        remaining -= len(chunk)
    return b"".join(chunks)


def _build_entry(path: str, stat_result: os.stat_result) -> FolderEntry:
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISLNK, "link"))
    kind = next((name for is_kind, name in kinds if is_kind(stat_result.st_mode)), "other")
    size = stat_result.st_size if kind == "file" else 0
    return FolderEntry(
        path,
        kind=kind,
        size=size,
        modified_ns=stat_result.st_mtime_ns,
        link_count=stat_result.st_nlink,
    )
