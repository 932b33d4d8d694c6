"""Rotate the encryption key while everything runs.

1. A new key is put first in the key file; running processes reload it (`core.crypto.key_ring`).
2. Once all processes have reloaded it, every value that isn't encrypted with the first key is
   encrypted again, in batches. Values changed meanwhile are skipped: they use the new key already.
3. Then the old keys can be dropped, after a day, when the encrypted states that clients of the
   gateway hold have expired.

The rotation can be interrupted at any point and started again: all keys stay valid until they are
dropped.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.fernet import InvalidToken
from django.conf import settings
from django.db import connection, transaction

from bonobot.accounts.models import Organization
from bonobot.core.crypto import key_files, key_ring
from bonobot.core.crypto.encrypted_fields import list_sealed_fields
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict
from bonobot.ledger.audit.admin_changes import record_change
from bonobot.ledger.types import Actor

BATCH_SIZE = 200
# After this time all processes use the new key: twice the interval at which they check the file.
KEY_PROPAGATION_S = 2 * key_ring.REFRESH_INTERVAL_S


@dataclass(frozen=True)
class KeyRotationStatus:
    """The number of keys, and of values encrypted with the first, an older or an unknown key."""

    keys: int
    current: int
    older: int
    unreadable: int
    changed_at: datetime | None

    @property
    def unfinished(self) -> bool:
        """Whether values with older keys are left."""
        return self.older > 0


def load_rotation_status() -> KeyRotationStatus:
    """Count the encrypted values by key."""
    key_ring.refresh_keys(force=True)
    counts: Counter[str] = Counter()
    for field in list_sealed_fields():
        for batch in _iterate_batches(field, BATCH_SIZE):
            counts.update(_classify_token(token) for _, token in batch)
    path = settings.BONOBOT_FIELD_KEYS_PATH
    changed_at = (
        datetime.fromtimestamp(path.stat().st_mtime, UTC) if path and path.exists() else None
    )
    return KeyRotationStatus(
        key_ring.count_keys(),
        current=counts["current"],
        older=counts["older"],
        unreadable=counts["unreadable"],
        changed_at=changed_at,
    )


def add_key() -> None:
    """Put a new key first in the key file; raises `Conflict` if there is no writable file."""
    path = _get_writable_key_file()
    with key_files.lock_folder(path.parent):
        keys = key_files.parse_field_keys(
            path.read_text(encoding="utf-8"), name=key_ring.SETTING_NAME
        )
        _write_keys(path, [key_files.generate_field_key(), *keys])
    key_ring.refresh_keys(force=True)


def rotate_sealed_values(
    *, batch: int = BATCH_SIZE, on_progress: Callable[[int], object] = lambda number: None
) -> int:
    """Encrypt values of older keys with the first key; return their number. Idempotent."""
    key_ring.refresh_keys(force=True)
    return sum(_rotate_field(field, batch, on_progress) for field in list_sealed_fields())


def drop_old_keys(*, now: bool = False) -> int:
    """Remove all keys but the first; return how many.

    Raises `Conflict` if values still use them, if there is no writable key file, and (unless `now`)
    if clients may still hold states encrypted with them.
    """
    path, status = _get_writable_key_file(), load_rotation_status()
    if status.older:
        raise Conflict(
            format_message("{older} values are encrypted with older keys.", older=status.older),
            code="keys_in_use",
            remedy="Run `bonobot keys rotate`. It continues where it stopped.",
        )
    until = (
        (status.changed_at or datetime.now(UTC))
        + key_ring.SEALED_STATE_LIFETIME
        + timedelta(seconds=KEY_PROPAGATION_S)
    )
    if not now and status.keys > 1 and until > datetime.now(UTC):
        raise Conflict(
            format_message(
                "Clients may hold states encrypted with older keys until {until:%Y-%m-%d "
                "%H:%M} UTC.",
                until=until,
            ),
            code="keys_in_use",
            field="--now",
            remedy="Wait, or use --now. With --now, these clients have to restart their calls.",
        )
    with key_files.lock_folder(path.parent):
        keys = key_files.parse_field_keys(
            path.read_text(encoding="utf-8"), name=key_ring.SETTING_NAME
        )
        _write_keys(path, keys[:1])
    key_ring.refresh_keys(force=True)
    return len(keys) - 1


def record_rotation(actor: Actor, action: str, **details: int) -> None:
    """Record the action in the audit log of every organization, as it affects their secrets."""
    for organization_id in Organization.objects.values_list("pk", flat=True).iterator():
        with record_change(
            organization_id=organization_id,
            actor=actor,
            action=action,
            resource_type="keys",
            resource_id="field_keys",
            resource_name="keys of sealed values",
            details=details,
            governed=False,
        ):
            pass


def _classify_token(token: str) -> str:
    if key_ring.is_current(token):
        return "current"
    try:
        key_ring.unseal(token)
    except (InvalidToken, ValueError):
        return "unreadable"
    return "older"


def _iterate_batches(field: Any, size: int) -> Iterator[list[tuple[Any, str]]]:
    """Yield batches of (primary key, encrypted text) in key order, without decrypting."""
    rows = field.model._base_manager.exclude(**{field.attname: ""}).order_by("pk")
    rows = rows.exclude(**{f"{field.attname}__isnull": True})
    last = None
    while True:
        remaining = rows if last is None else rows.filter(pk__gt=last)
        batch = [
            (pk, encrypted_value.mark)
            for pk, encrypted_value in remaining.values_list("pk", field.attname)[:size]
        ]
        if not batch:
            return
        yield batch
        last = batch[-1][0]


def _rotate_field(field: Any, size: int, on_progress: Callable[[int], object]) -> int:
    rotated = 0
    for batch in _iterate_batches(field, size):
        outdated = [(pk, token) for pk, token in batch if _classify_token(token) == "older"]
        with transaction.atomic():
            rotated += sum(
                _replace_value(field, pk, token, key_ring.rotate_token(token))
                for pk, token in outdated
            )
        on_progress(len(batch))
    return rotated


def _replace_value(field: Any, pk: Any, old: str, new: str) -> int:
    """Write the new text unless the value changed meanwhile; return the row count."""
    meta, quote = field.model._meta, connection.ops.quote_name
    condition = f"{quote(meta.pk.column)} = %s AND {quote(field.column)} = %s"
    statement = f"UPDATE {quote(meta.db_table)} SET {quote(field.column)} = %s WHERE {condition}"  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(statement, [new, meta.pk.get_db_prep_value(pk, connection), old])
        return int(cursor.rowcount)


def _get_writable_key_file() -> Path:
    path: Path | None = settings.BONOBOT_FIELD_KEYS_PATH
    if path is None or not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        raise Conflict(
            "The keys are managed externally, so this command can't change them.",
            code="keys_managed_externally",
            field="BONOBOT_FIELD_KEYS",
            remedy="Put a new key (`bonobot generate_encryption_key`) first in the file set in "
            "`BONOBOT_FIELD_KEYS_FILE`. Running processes pick it up. If you use a "
            "variable, add the key after the others and restart every process, then move "
            "it to first place and restart again. Then run `bonobot keys rotate --existing`.",
        )
    return path


def _write_keys(path: Path, keys: list[str]) -> None:
    key_files.replace_file(path, ",".join(keys))
