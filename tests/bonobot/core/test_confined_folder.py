"""Files within a folder: no path, symlink or race reaches the outside."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.confined_folder import ConfinedFolder, PathRefused, split_path
from bonobot.core.problems import Conflict, NotFound, Problem

SECRET = b"nobody's business"
RACER = """
import os, sys
inside, outside = sys.argv[1:]
swaps = 0
print("ready", flush=True)
while True:
    # A folder and a link out of the workspace take turns under one name.
    os.rename(inside + "/turn", inside + "/kept")
    os.symlink(outside, inside + "/turn")
    os.unlink(inside + "/turn")
    os.rename(inside + "/kept", inside + "/turn")
    # And so do a file and a link.
    os.rename(inside + "/turn/file", inside + "/turn/real")
    os.symlink(outside + "/secret", inside + "/turn/file")
    os.unlink(inside + "/turn/file")
    os.rename(inside + "/turn/real", inside + "/turn/file")
"""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with a secret outside the workspace."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(SECRET)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of the workspace."""
    folder = tmp_path.resolve() / "inside"
    folder.mkdir()
    return folder


@pytest.fixture
def folder(root: Path) -> Iterator[ConfinedFolder]:
    """The opened workspace."""
    with ConfinedFolder(root) as workspace:
        yield workspace


def test_files_are_written_read_moved_and_deleted(folder: ConfinedFolder, root: Path):
    assert folder.write("a/b/c.txt", b"one", create_parents=True) is True
    assert folder.write("a/b/c.txt", b"two") is False
    assert folder.read("a//./b/c.txt", 10) == b"two"
    folder.move("a/b/c.txt", "a/d.txt")
    assert [entry.path for entry in folder.iterate_entries()] == ["a", "a/b", "a/d.txt"]
    assert folder.find_entry("a/b/c.txt") is None
    assert folder.delete("a/d.txt").kind == "file"
    with pytest.raises(Conflict, match="isn't empty"):
        folder.delete("a")
    folder.delete("a", with_contents=True)
    assert list(root.iterdir()) == []
    with pytest.raises(NotFound):
        folder.read("a", 1)


def test_a_written_file_keeps_its_permissions_and_leaves_no_temporary_file(
    folder: ConfinedFolder, root: Path
):
    (root / "run").write_bytes(b"old")
    (root / "run").chmod(0o755)
    folder.write("run", b"new")
    assert (root / "run").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in root.iterdir()] == ["run"]
    (root / "sub").mkdir()
    with pytest.raises(PathRefused) as raised:
        folder.write("sub", b"x")
    assert raised.value.code == "not_a_file"
    assert sorted(path.name for path in root.iterdir()) == ["run", "sub"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../outside/secret", "outside_workspace"),
        ("a/../../outside/secret", "outside_workspace"),
        ("/etc/passwd", "outside_workspace"),
        ("a\0b", "bad_path"),
        ("\ud800", "bad_path"),
        ("x" * 256, "bad_path"),
        ("a/" * 3000, "bad_path"),
        ("link", "symbolic_link"),
        ("way/secret", "symbolic_link"),
        ("names", "hard_link"),
        ("pipe", "not_a_file"),
        ("here", "not_a_file"),
        (".", "bad_path"),
    ],
)
def test_paths_to_the_outside_are_refused_for_reading_and_writing(
    folder: ConfinedFolder, root: Path, outside: Path, path: str, code: str
):
    (root / "link").symlink_to(outside / "secret")
    (root / "way").symlink_to(outside)
    (root / "names").hardlink_to(outside / "secret")
    (root / "here").mkdir()
    os.mkfifo(root / "pipe")
    for attempt in (lambda: folder.read(path, 100), lambda: folder.write(path, b"mine")):
        with pytest.raises(PathRefused) as raised:
            attempt()
        assert raised.value.code == code
        assert raised.value.field == "path"
    assert (outside / "secret").read_bytes() == SECRET


def test_symlinks_are_neither_followed_nor_deleted_through(
    folder: ConfinedFolder, root: Path, outside: Path
):
    (root / "way").symlink_to(outside)
    (root / "deep").mkdir()
    (root / "deep" / "way").symlink_to(outside)
    assert [entry.path for entry in folder.iterate_entries()] == ["deep", "way", "deep/way"]
    folder.delete("deep", with_contents=True)
    assert folder.delete("way").kind == "link"
    assert (outside / "secret").read_bytes() == SECRET


def test_a_root_that_became_a_symlink_isnt_opened(root: Path, outside: Path):
    root.rmdir()
    root.symlink_to(outside)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        ConfinedFolder(root)


def test_another_file_system_isnt_entered():
    if not os.path.ismount("/dev/shm"):
        pytest.skip("no second file system")
    with ConfinedFolder(Path("/dev")) as devices:
        with pytest.raises(PathRefused) as raised:
            devices.list_entries("shm", 1)
        assert raised.value.code == "other_filesystem"
        with pytest.raises(PathRefused) as raised:
            devices.read("null", 1)
        assert raised.value.code == "not_a_file"


def test_a_file_that_is_too_large_is_refused_before_it_is_read(folder: ConfinedFolder, root: Path):
    with (root / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(PathRefused) as raised:
        folder.read("sparse", 1000)
    assert raised.value.code == "too_large"
    assert folder.measure_usage(10).size == 1 << 40


def test_counting_stops_at_its_limit_and_in_endless_folders(folder: ConfinedFolder, root: Path):
    for number in range(5):
        (root / str(number)).touch()
    assert folder.measure_usage(5).is_partial is False
    assert folder.measure_usage(4).is_partial is True
    deep = root
    for _ in range(70):
        deep = deep / "d"
        deep.mkdir()
    assert folder.measure_usage(10_000).is_partial is True


@given(st.text(st.characters(categories=["L", "P", "Cc", "Zs", "Cs"]), max_size=60))
def test_any_path_is_inside_the_folder_or_refused(text: str):
    with suppress(Problem):
        for part in split_path(text):
            assert part not in ("", ".", "..")
            assert "/" not in part
            assert "\0" not in part


def test_swapping_symlinks_never_reaches_the_outside(
    folder: ConfinedFolder, root: Path, outside: Path
):
    (root / "turn").mkdir()
    (root / "turn" / "file").write_bytes(b"ours")
    command = [sys.executable, "-c", RACER, str(root), str(outside)]
    codes: set[str] = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as racer:
        assert racer.stdout is not None
        racer.stdout.readline()
        try:
            for attempts in itertools.count():
                # Continue until a link was met, which takes longer on some machines.
                if attempts >= 1_500 and ("symbolic_link" in codes or attempts >= 50_000):
                    break
                for attempt in (
                    lambda: folder.read("turn/file", 100),
                    lambda: folder.read("turn/secret", 100),
                    lambda: folder.write("turn/new", b"ours"),
                    lambda: folder.write("turn/secret", b"ours"),
                    lambda: folder.delete("turn/secret"),
                ):
                    try:
                        content = attempt()
                    except Problem as problem:
                        codes.add(problem.code)
                    else:
                        assert content != SECRET
        finally:
            racer.kill()
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"secret": SECRET}
    assert "symbolic_link" in codes
