"""Keys that are created on first use: once for all processes, readable only by the owner."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured

from bonobot.core.crypto import key_files

PROGRAM = """
import pathlib, secrets, sys
from bonobot.core.crypto.key_files import read_or_create_text
sys.stdin.readline()
print(read_or_create_text(pathlib.Path(sys.argv[1]), secrets.token_hex))
"""


def test_a_key_is_created_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "key"
    first = key_files.read_or_create_text(path, key_files.generate_secret_key)
    assert key_files.read_or_create_text(path, key_files.generate_secret_key) == first
    assert len(first) > 50


def test_keys_and_their_folder_are_readable_only_by_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "key"
    key_files.read_or_create_text(path, key_files.generate_field_key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["key"]


def test_an_empty_file_isnt_a_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("\n", encoding="utf-8")
    assert key_files.read_or_create_text(tmp_path / "key", lambda: "made") == "made"
    assert (tmp_path / "key").read_text(encoding="utf-8") == "made\n"


def test_processes_that_start_together_agree_on_one_key(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "new" / "key")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    keys = {process.communicate(timeout=30)[0].strip() for process in processes}
    assert len(keys) == 1
    assert keys.pop() == (tmp_path / "new" / "key").read_text(encoding="utf-8").strip()


def test_an_unusable_folder_is_reported_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(ImproperlyConfigured, match="`BONOBOT_VAR` must be a folder"):
        key_files.read_or_create_text(tmp_path / "file" / "key", lambda: "x")
    with pytest.raises(ImproperlyConfigured, match="`BONOBOT_VAR` must be a folder"):
        key_files.ensure_private_folder(tmp_path / "file")


def test_the_first_field_key_encrypts() -> None:
    first, second = key_files.generate_field_key(), key_files.generate_field_key()
    assert key_files.parse_field_keys(f"{first}, {second}", name="KEYS") == [first, second]
    assert key_files.parse_field_keys(f"{first}\n{second}\n", name="KEYS") == [first, second]
    Fernet(first)


@pytest.mark.parametrize("value", ["", " , ", "not-a-key", "c2hvcnQ="])
def test_invalid_field_keys_are_refused_without_being_shown(value: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="`KEYS` must") as raised:
        key_files.parse_field_keys(value, name="KEYS")
    if value.strip(" ,"):
        assert value not in str(raised.value)


def test_the_first_signing_key_signs() -> None:
    first, second = key_files.generate_signing_key(), key_files.generate_signing_key()
    assert key_files.parse_signing_keys(f"{first},{second}", name="KEYS") == [first, second]


@pytest.mark.parametrize("value", ["", " , ", "not-a-key", "c2hvcnQ="])
def test_invalid_signing_keys_are_refused_without_being_shown(value: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="`KEYS` must") as raised:
        key_files.parse_signing_keys(value, name="KEYS")
    if value.strip(" ,"):
        assert value not in str(raised.value)


def test_peppers_are_numbered() -> None:
    peppers = key_files.parse_peppers(
        f"{key_files.generate_peppers()},32767:{'p' * 32}", name="PEPPERS"
    )
    assert len(peppers) == 2
    assert peppers[max(peppers)] == "p" * 32


def test_a_pepper_that_replaces_a_lost_one_has_another_number() -> None:
    numbers = {key_files.generate_peppers().partition(":")[0] for _ in range(20)}
    assert len(numbers) > 10


@pytest.mark.parametrize(
    "value",
    ["", "pepper", "1:short", f"x:{'p' * 32}", f"1:{'p' * 32},1:{'q' * 32}", f"32768:{'p' * 32}"],
)
def test_invalid_peppers_are_refused(value: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="`PEPPERS` must"):
        key_files.parse_peppers(value, name="PEPPERS")


def test_missing_parents_of_a_private_folder_are_private_too(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    folder = key_files.ensure_private_folder(tmp_path / "workspaces" / "acme" / "files")
    for created in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(created.stat().st_mode) == 0o700
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
