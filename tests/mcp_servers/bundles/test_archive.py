"""Archives of bundles: nothing is written outside of their folder, and sizes are limited."""

import io
import stat
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from bonobot.core.problems import InvalidInput
from mcp_servers.bundles import archive as bundle_archive
from mcp_servers.bundles.archive import BundleArchive, BundleFolder, hash_folder
from tests.bundle_files import build_bundle


def write_entry(name: str, content: bytes = b"x", *, mode: int = 0, system: int = 3) -> bytes:
    info = zipfile.ZipInfo("placeholder")
    info.filename = info.orig_filename = name  # the constructor would correct it
    info.external_attr, info.create_system = mode << 16, system
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(info, content)
    return buffer.getvalue()


def refuse(data: bytes) -> str:
    with pytest.raises(InvalidInput) as caught:
        BundleArchive(data).hash_files()
    assert caught.value.field == "bundle"
    return caught.value.code


@pytest.mark.parametrize(
    "name",
    [
        *("../evil", "a/../../evil", "/etc/evil", "//evil", "./a", "a//b", "..", "a\\b", "C:/evil"),
        *("a\x01b", "a\nb", "x" * 201, "/".join(["long"] * 90), "\u202eevil"),
    ],
)
def test_a_path_that_could_leave_the_folder_is_refused(name: str) -> None:
    assert refuse(write_entry(name)) == "bad_bundle"


def test_a_path_that_continues_after_a_nul_is_refused() -> None:
    data = write_entry("evilXname").replace(b"evilXname", b"evil\x00name")
    assert refuse(data) == "bad_bundle"


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_links_and_special_files_are_refused(kind: int) -> None:
    assert refuse(write_entry("link", b"/etc/passwd", mode=kind | 0o777)) == "bad_bundle"


@pytest.mark.parametrize("names", [("a", "a"), ("a", "A"), ("a", "a/b"), ("a/b", "a"), ("é", "é")])
def test_a_path_that_occurs_twice_is_refused(names: tuple[str, str]) -> None:
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w") as archive,
        pytest.warns() if names[0] == names[1] else nullcontext(),
    ):
        for name in names:
            archive.writestr(name, "x")
    assert refuse(buffer.getvalue()) == "bad_bundle"


def test_an_encrypted_or_damaged_archive_is_refused() -> None:
    data = bytearray(write_entry("a", b"content"))
    central = data.rindex(b"PK\x01\x02")
    data[central + 8] |= 1
    assert refuse(bytes(data)) == "bad_bundle"
    data[central + 8] &= ~1
    data[data.index(b"content")] ^= 1  # its checksum is wrong now
    assert refuse(bytes(data)) == "bad_bundle"
    for text in (b"", b"{}", b"PK\x03\x04 cut off", build_bundle()[:-30]):
        assert refuse(text) == "bad_bundle"


def test_an_archive_above_the_limits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = build_bundle(files={"zeros": bytes(9 * 1024 * 1024)})
    assert len(bomb) < 100_000
    assert refuse(bomb) == "bundle_too_large"
    monkeypatch.setattr(bundle_archive, "MAX_UNPACKED_BYTES", 100)
    assert refuse(build_bundle(files={"a": bytes(101)})) == "bundle_too_large"
    monkeypatch.setattr(bundle_archive, "MAX_FILES", 2)
    assert refuse(build_bundle(files={"a": b"", "b": b""})) == "bundle_too_large"
    monkeypatch.setattr(bundle_archive, "MAX_ARCHIVE_BYTES", 20)
    assert refuse(build_bundle()) == "bundle_too_large"


def test_a_size_that_the_archive_understates_isnt_trusted() -> None:
    data = bytearray(build_bundle(files={"zeros": bytes(9 * 1024 * 1024)}))
    position = data.rindex(b"PK\x01\x02") + 24
    data[position : position + 4] = (10).to_bytes(4, "little")
    assert refuse(bytes(data)) in ("bad_bundle", "bundle_too_large")


def test_an_unpacked_folder_is_complete_and_compared_by_its_digest(tmp_path: Path) -> None:
    archive = BundleArchive(build_bundle(files={"lib/tool": b"#!/bin/sh\n"}))
    folder = tmp_path / "bundle"
    archive.unpack(folder)
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        *("clock.py", "manifest.json", "tool")
    ]
    assert hash_folder(folder) == archive.hash_files()
    unpacked = BundleFolder(str(folder), archive.hash_files())
    assert unpacked.is_unchanged()
    archive.unpack(folder)  # another process was faster
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    tool = folder / "lib" / "tool"
    for change in (
        lambda: tool.write_text("other"),
        lambda: (tool.write_text("#!/bin/sh\n"), tool.chmod(0o700)),
        lambda: (tool.unlink(), tool.symlink_to("/bin/sh")),
        tool.unlink,
    ):
        change()
        assert not unpacked.is_unchanged()
    assert not BundleFolder(str(tmp_path / "missing"), "").is_unchanged()


def test_nothing_remains_of_an_archive_that_cant_be_unpacked(tmp_path: Path) -> None:
    data = bytearray(write_entry("a", b"content"))
    data[data.index(b"content")] ^= 1
    with pytest.raises(InvalidInput):
        BundleArchive(bytes(data)).unpack(tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []
