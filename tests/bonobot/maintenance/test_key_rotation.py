"""Rotation of the encryption key while everything runs, also after it was killed."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography.fernet import Fernet, MultiFernet
from django.core.management import call_command
from encrypted_model_fields import fields as library
from pytest_django import Settings

from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.request_state import decrypt_state, encrypt_state
from agents.models import ModelEndpoint
from bonobot.accounts.models import Organization
from bonobot.core.crypto import key_files, key_ring
from bonobot.core.crypto.encrypted_fields import UnreadableSecret
from bonobot.core.problems import Conflict
from bonobot.ledger.models import AuditRow
from bonobot.maintenance import key_rotation
from tests.parts import ROOT
from tests.processes import build_environment

pytestmark = pytest.mark.django_db(transaction=True)
ANA = cast(AuthenticatedClient, SimpleNamespace(key="agent:1:token:1"))


@pytest.fixture
def file(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file with one key, which this process uses."""
    path, key = tmp_path / "field_keys", key_files.generate_field_key()
    key_files.replace_file(path, key)
    settings.BONOBOT_FIELD_KEYS_PATH = path
    monkeypatch.setattr(library, "CRYPTER", MultiFernet([Fernet(key)]))
    for name, value in {"keys": (key,), "stamp": None}.items():
        monkeypatch.setattr(key_ring._KeyFileState, name, value)
    return path


@pytest.fixture
def acme() -> Organization:
    return Organization.objects.create(name="Acme", slug="acme")


def create_endpoints(acme: Organization, number: int) -> list[ModelEndpoint]:
    return [
        ModelEndpoint.objects.create(
            organization=acme, name=f"e{n}", slug=f"e{n}", model="m", api_key=f"sk-{n}"
        )
        for n in range(number)
    ]


def decrypt_all() -> list[str]:
    return [row.api_key.open() for row in ModelEndpoint.objects.order_by("name")]


def rotate(*options: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command("keys", "rotate", "--yes", "--wait", "0", "--json", *options, stdout=out)
    result: dict[str, Any] = json.loads(out.getvalue())
    return result


def test_all_values_are_encrypted_with_the_new_key_and_the_old_one_removed(
    file: Path, acme: Organization
) -> None:
    create_endpoints(acme, 3)
    old = key_ring.get_sealing_key()
    assert rotate("--batch", "2")["resealed"] == 3
    status = key_rotation.load_rotation_status()
    assert (status.keys, status.current, status.older, status.unreadable) == (2, 3, 0, 0)
    assert key_rotation.drop_old_keys(now=True) == 1
    assert key_ring.count_keys() == 1
    assert key_ring.get_sealing_key() is not old
    assert decrypt_all() == ["sk-0", "sk-1", "sk-2"]
    assert len(file.read_text(encoding="utf-8").split(",")) == 1
    assert file.stat().st_mode & 0o077 == 0
    actions = AuditRow.objects.order_by("seq").values_list("action", flat=True)
    assert list(actions) == ["key_rotation_started", "keys_rotated"]


# The command, in a process that kills itself in the middle of the values.
KILLED_ROTATION = """
import os, signal
import django
from django.core.management import call_command

django.setup()
from bonobot.maintenance import key_rotation

rotate_sealed_values, rotated = key_rotation.rotate_sealed_values, 0

def kill_after_ten_values(row_count):
    global rotated
    rotated += row_count
    if rotated == 10:
        os.kill(os.getpid(), signal.SIGKILL)

key_rotation.rotate_sealed_values = lambda *, batch, on_progress: rotate_sealed_values(
    batch=batch, on_progress=kill_after_ten_values
)
call_command("keys", "rotate", "--yes", "--wait", "0", "--batch", "1")
"""


def test_a_killed_rotation_continues_where_it_stopped(file: Path, acme: Organization) -> None:
    rows = create_endpoints(acme, 30)
    rotation = subprocess.run(
        [sys.executable, "-c", KILLED_ROTATION],
        cwd=ROOT,
        env=build_environment({"BONOBOT_FIELD_KEYS_FILE": str(file)}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert rotation.returncode == -signal.SIGKILL, rotation.stderr
    progress = key_rotation.load_rotation_status()
    assert progress.keys == 2
    assert (progress.current, progress.older) == (10, 20)
    assert sorted(decrypt_all()) == sorted(f"sk-{n}" for n in range(len(rows)))
    with pytest.raises(Conflict, match="encrypted with older keys"):
        key_rotation.drop_old_keys(now=True)
    assert rotate()["resealed"] == progress.older
    assert key_rotation.load_rotation_status().keys == 2, "another key was added"
    assert key_rotation.load_rotation_status().older == 0
    assert len(decrypt_all()) == len(rows)


def test_a_running_process_reloads_the_key_file(file: Path, acme: Organization) -> None:
    (row,) = create_endpoints(acme, 1)
    newer = key_files.generate_field_key()
    key_files.replace_file(file, f"{newer},{file.read_text(encoding='utf-8').strip()}")
    encrypted = Fernet(newer).encrypt(b"x").decode()
    assert key_ring.unseal(encrypted) == "x"
    row.refresh_from_db()
    assert row.api_key.open() == "sk-0"
    assert Fernet(newer).decrypt(key_ring.seal("y").encode()) == b"y"


def test_a_process_checks_the_key_file_regularly_before_it_encrypts(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = key_files.generate_field_key()
    key_files.replace_file(file, f"{newer},{file.read_text(encoding='utf-8').strip()}")
    monkeypatch.setattr(
        key_ring._KeyFileState,
        "checked_at",
        key_ring.time.monotonic() - key_ring.REFRESH_INTERVAL_S,
    )
    assert Fernet(newer).decrypt(key_ring.seal("y").encode()) == b"y"


def test_an_unreadable_key_file_changes_nothing(file: Path, acme: Organization) -> None:
    create_endpoints(acme, 1)
    file.write_text("no key\n", encoding="utf-8")
    assert key_ring.refresh_keys(force=True) is False
    assert decrypt_all() == ["sk-0"]


def test_a_client_state_is_valid_until_the_old_key_is_removed(file: Path) -> None:
    state = encrypt_state(ANA, "x", {"held": 1})
    rotate()
    assert decrypt_state(ANA, "x", state) == {"held": 1}
    with pytest.raises(Conflict) as caught:
        key_rotation.drop_old_keys()
    assert caught.value.code == "keys_in_use"


def test_values_that_changed_meanwhile_arent_overwritten(file: Path, acme: Organization) -> None:
    (row,) = create_endpoints(acme, 1)
    field = ModelEndpoint._meta.get_field("api_key")
    assert key_rotation._replace_value(field, row.pk, "another text", "new") == 0
    row.refresh_from_db()
    assert row.api_key.open() == "sk-0"


def test_a_value_that_cant_be_decrypted_is_reported_and_never_written(
    file: Path, acme: Organization
) -> None:
    (row,) = create_endpoints(acme, 1)
    field = ModelEndpoint._meta.get_field("api_key")
    row.refresh_from_db()
    foreign = Fernet(Fernet.generate_key()).encrypt(b"x").decode()
    key_rotation._replace_value(field, row.pk, row.api_key.mark, foreign)
    assert rotate()["unreadable"] == 1
    row.refresh_from_db()
    assert row.api_key.mark == foreign
    with pytest.raises(UnreadableSecret):
        row.api_key.open()


def test_keys_from_an_environment_variable_cant_be_rotated(
    file: Path, acme: Organization, settings: Settings
) -> None:
    settings.BONOBOT_FIELD_KEYS_PATH = None
    with pytest.raises(Conflict) as caught:
        key_rotation.add_key()
    assert caught.value.code == "keys_managed_externally"
    create_endpoints(acme, 2)
    library.CRYPTER = MultiFernet([Fernet(Fernet.generate_key()), *library.CRYPTER._fernets])
    assert rotate("--existing")["resealed"] == 2
