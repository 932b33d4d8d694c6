"""The unpacked files of a server's bundle, compared with their digest at every start."""

import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BundleFolder:
    """A folder with the files of a bundle; `tree_digest` is that of the approved archive."""

    path: str
    tree_digest: str

    def is_unchanged(self) -> bool:
        """Tell whether the folder has exactly the files of the archive. Blocks."""
        try:
            return hash_folder(Path(self.path)) == self.tree_digest
        except (OSError, ValueError):
            return False


def hash_tree(files: Iterable[tuple[str, bool, str]]) -> str:
    """Return the digest of files, given as path, whether it is executable, and SHA-256."""
    total = hashlib.sha256()
    for path, executable, digest in sorted(files):
        total.update(f"{path}\0{'x' if executable else '-'}\0{digest}\n".encode())
    return total.hexdigest()


def hash_folder(root: Path) -> str:
    """Return the digest of a folder's files; raises `ValueError` for anything else than files."""
    files = []
    for folder, names, file_names in os.walk(root, onerror=_raise_error):
        for name in (*names, *file_names):
            path = Path(folder, name)
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                continue
            if not stat.S_ISREG(mode):
                raise ValueError(name)
            relative_path = path.relative_to(root).as_posix()
            files.append((relative_path, bool(mode & stat.S_IXUSR), _hash_file(path)))
    return hash_tree(files)


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _raise_error(error: OSError) -> None:
    raise error
