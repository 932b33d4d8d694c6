"""Paths beneath a folder: what may be written as one, and why one is refused."""

import errno
import os

from bonobot.lib.problems import Conflict, NotFound, Problem
from bonobot.lib.sayings import say

LONGEST_PATH = 4096  # bytes, as the system has it
LONGEST_PART = 255
DEEPEST = 64


class PathRefused(Problem):
    """A path that is not used.

    Codes: `bad_path`, `outside_workspace`, `symbolic_link`, `hard_link`, `not_a_file`,
    `not_a_folder`, `other_filesystem`, `too_large`, `not_possible`.
    """

    code = "bad_path"
    status = 400
    title = "The path can't be used"


def parts_of(path: str) -> tuple[str, ...]:
    """Return the parts of a path beneath the folder; () is the folder itself.

    Raises `PathRefused` for everything that says more than a way down.
    """
    if "\0" in path:
        raise bad(path, "It holds a NUL character.")
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        raise bad(path, "It isn't Unicode text.") from None
    if path.startswith("/"):
        raise PathRefused(
            say("`{path}` is an absolute path.", path=path[:200]),
            code="outside_workspace",
            field="path",
            remedy="Write paths relative to the workspace, such as `notes/today.md`.",
        )
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise PathRefused(
            say("`{path}` goes up with `..`.", path=path[:200]),
            code="outside_workspace",
            field="path",
            remedy="Write paths relative to the workspace, without `..`.",
        )
    too_long = len(raw) > LONGEST_PATH or any(len(p.encode()) > LONGEST_PART for p in parts)
    if too_long or len(parts) > DEEPEST:
        raise bad(path, say("It is too long, or deeper than {deepest} folders.", deepest=DEEPEST))
    return parts


def refuse_second_name(path: str, found: os.stat_result) -> None:
    """Raise where a file has more than one name."""
    if found.st_nlink > 1:
        raise PathRefused(
            say(
                "`{path}` has {st_nlink} names (hard links), and others may be outside.",
                path=path,
                st_nlink=found.st_nlink,
            ),
            code="hard_link",
            field="path",
            remedy="Have whoever keeps the folder make it a file of its own.",
        )


def linked(path: str) -> PathRefused:
    """Return the refusal of a symbolic link."""
    return PathRefused(
        say("`{path}` is a symbolic link, and links are not followed.", path=path),
        code="symbolic_link",
        field="path",
        remedy="Name the file or folder itself.",
    )


def elsewhere(path: str) -> PathRefused:
    """Return the refusal of what another file system holds."""
    return PathRefused(
        say("`{path}` is on another file system.", path=path),
        code="other_filesystem",
        field="path",
        remedy="Only files of the workspace's own file system are used.",
    )


def missing(path: str) -> NotFound:
    """Return that nothing is there."""
    return NotFound(
        say("There is nothing at `{path}`.", path=path),
        field="path",
        remedy="`list_files` shows what there is.",
    )


def because(path: str, error: OSError) -> Problem:
    """Return what an error of the system means to whoever named the path."""
    if error.errno == errno.ENOENT:
        return missing(path)
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return linked(path)
    if error.errno == errno.ENOTDIR:
        return PathRefused(
            say("`{path}` is no folder.", path=path),
            code="not_a_folder",
            field="path",
            remedy="`list_files` shows what there is.",
        )
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        return Conflict(
            say("The folder `{path}` isn't empty.", path=path),
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


def bad(path: str, why: str) -> PathRefused:
    """Return the refusal of a path that says nothing usable."""
    shown = path[:200].encode("utf-8", "replace").decode()
    return PathRefused(
        say("`{shown}` can't be used as a path. {why}", shown=shown, why=why),
        field="path",
        remedy="Write a path relative to the workspace, such as `notes/today.md`.",
    )
