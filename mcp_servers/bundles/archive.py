"""Read the archive of a bundle; nothing outside of its folder can be written, nothing is run.

The sizes that an archive declares are only a hint: files are read in parts, and reading ends at the
limits.

The unpacked files are compared with their digest at every start of the server.
"""

import hashlib
import io
import os
import shutil
import stat
import unicodedata
import uuid
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible

MIB = 1024 * 1024
MAX_ARCHIVE_BYTES = 64 * MIB
MAX_UNPACKED_BYTES = 256 * MIB
MAX_FILES = 20_000
MAX_PATH_LENGTH = 400  # characters
MAX_NAME_LENGTH = 200  # bytes
MAX_COMPRESSION_RATIO = 200  # of the whole archive, above `FREE_BYTES`
FREE_BYTES = 8 * MIB
CHUNK_BYTES = MIB
ZIP_START = b"PK\x03\x04"
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
ENCRYPTED = 0x1
UNIX = 3


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


def is_bundle(data: bytes) -> bool:
    """Tell whether a file is a zip archive."""
    return data.startswith(ZIP_START)


@dataclass(frozen=True)
class ArchiveFile:
    """A file of an archive, with its checked path."""

    path: str
    executable: bool
    info: zipfile.ZipInfo


class BundleArchive:
    """A checked archive; raises `InvalidInput` (`bad_bundle`, `bundle_too_large`)."""

    def __init__(self, data: bytes) -> None:
        if len(data) > MAX_ARCHIVE_BYTES:
            raise _build_size_error(
                format_message("The file has more than {n} MiB.", n=MAX_ARCHIVE_BYTES // MIB)
            )
        self._data = data
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
            self.files = tuple(_list_files(self._zip))
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
            raise _build_error("", format_message("It isn't a zip archive.")) from error
        self._allowed_bytes = min(
            MAX_UNPACKED_BYTES, max(FREE_BYTES, MAX_COMPRESSION_RATIO * len(data))
        )

    @property
    def digest(self) -> str:
        """Return the SHA-256 digest of the archive."""
        return hashlib.sha256(self._data).hexdigest()

    def read_file(self, path: str, max_bytes: int) -> bytes | None:
        """Return the content of a file, or None if it doesn't exist."""
        file = next((file for file in self.files if file.path == path), None)
        if file is None:
            return None
        content = b""
        for chunk in self._iterate_chunks(file):
            content += chunk
            if len(content) > max_bytes:
                raise _build_error(path, format_message("It is too large."))
        return content

    def hash_files(self) -> str:
        """Read all files, and return the digest of the unpacked folder."""
        remaining = self._allowed_bytes
        hashes: list[tuple[str, bool, str]] = []
        for file in self.files:
            file_hash = hashlib.sha256()
            for chunk in self._iterate_chunks(file):
                remaining = _subtract_size(remaining, chunk)
                file_hash.update(chunk)
            hashes.append((file.path, file.executable, file_hash.hexdigest()))
        return hash_tree(hashes)

    def unpack(self, folder: Path) -> None:
        """Write all files to a new folder, which exists only once it is complete."""
        temporary = folder.with_name(f".{uuid.uuid4().hex}")
        temporary.mkdir(parents=True, mode=0o700)
        remaining = self._allowed_bytes
        try:
            for file in self.files:
                path = temporary / file.path
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                mode = 0o700 if file.executable else 0o600
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                with os.fdopen(os.open(path, flags, mode), "wb") as target:
                    for chunk in self._iterate_chunks(file):
                        remaining = _subtract_size(remaining, chunk)
                        target.write(chunk)
            try:
                temporary.rename(folder)
            except OSError:
                if not folder.is_dir():  # otherwise another process was faster
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _iterate_chunks(self, file: ArchiveFile) -> Iterator[bytes]:
        try:
            with self._zip.open(file.info) as source:
                while chunk := source.read(CHUNK_BYTES):
                    yield chunk
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError) as error:
            raise _build_error(file.path, format_message("It is damaged.")) from error


def _list_files(archive: zipfile.ZipFile) -> Iterator[ArchiveFile]:
    infos = archive.infolist()
    if len(infos) > MAX_FILES:
        raise _build_size_error(format_message("It has more than {n:,} files.", n=MAX_FILES))
    seen: dict[str, bool] = {}  # whether it is a file, by its path in lower case
    for info in infos:
        path = _check_path(info)
        mode = info.external_attr >> 16 if info.create_system == UNIX else 0
        kind = stat.S_IFMT(mode)
        is_folder = info.filename.endswith("/")
        if kind not in (0, stat.S_IFDIR if is_folder else stat.S_IFREG):
            raise _build_error(path, format_message("Links and special files aren't allowed."))
        if info.flag_bits & ENCRYPTED or info.compress_type not in METHODS:
            raise _build_error(path, format_message("Its compression isn't supported."))
        _check_unique(path, seen, is_file=not is_folder)
        if not is_folder:
            yield ArchiveFile(path, bool(mode & stat.S_IXUSR), info)


def _check_path(info: zipfile.ZipInfo) -> str:
    """Return the path of an entry; raises for one that could be outside of the folder."""
    # `orig_filename` is as written; `filename` ends at a NUL.
    name = info.orig_filename.removesuffix("/")
    parts = name.split("/")
    is_unsafe = (
        not name
        or len(name) > MAX_PATH_LENGTH
        or any(part in ("", ".", "..") for part in parts)
        or any(len(part.encode("utf-8", "replace")) > MAX_NAME_LENGTH for part in parts)
        or any(character in "\\:" or not character.isprintable() for character in name)
    )
    if is_unsafe or PurePosixPath(name).is_absolute():
        raise _build_error(
            make_visible(info.orig_filename, 100),
            format_message("Its path isn't a relative path within the bundle."),
        )
    return name


def _check_unique(path: str, seen: dict[str, bool], *, is_file: bool) -> None:
    """Raise for a path that occurs twice, or that is both a file and a folder."""
    key = unicodedata.normalize("NFC", path).casefold()
    parents = [str(parent) for parent in PurePosixPath(key).parents][:-1]
    is_repeated = key in seen and (is_file or seen[key])
    if is_repeated or any(seen.get(parent) for parent in parents):
        raise _build_error(path, format_message("Its path occurs twice."))
    seen[key] = is_file
    for parent in parents:
        seen.setdefault(parent, False)


def _subtract_size(remaining: int, chunk: bytes) -> int:
    if len(chunk) > remaining:
        raise _build_size_error(
            format_message(
                "Unpacked, it has more than {n} MiB, or is compressed more than {ratio} times.",
                n=MAX_UNPACKED_BYTES // MIB,
                ratio=MAX_COMPRESSION_RATIO,
            )
        )
    return remaining - len(chunk)


def _build_error(path: str, reason: str) -> InvalidInput:
    detail = (
        format_message("The bundle can't be read: `{path}`: {reason}", path=path, reason=reason)
        if path
        else format_message("The bundle can't be read: {reason}", reason=reason)
    )
    return InvalidInput(
        detail,
        code="bad_bundle",
        field="bundle",
        remedy="Create the file with `mcpb pack`, and upload it again.",
    )


def _build_size_error(reason: str) -> InvalidInput:
    return InvalidInput(
        format_message("The bundle is too large: {reason}", reason=reason),
        code="bundle_too_large",
        status=413,
        field="bundle",
        remedy="Leave out development dependencies, or add the server from a package registry.",
    )


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
