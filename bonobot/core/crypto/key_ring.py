"""The keys of encrypted values: the first key encrypts, all decrypt.

If the keys are in a file (`BONOBOT_VAR/keys/field_keys` or `BONOBOT_FIELD_KEYS_FILE`), running
processes reload it when it changes: they check it every few seconds before they encrypt, and
immediately when a value can't be decrypted. So keys can be rotated without a restart. A file that
can't be read or has no keys is ignored.
"""

import logging
import os
import threading
import time
from datetime import timedelta
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from encrypted_model_fields import fields as library

from bonobot.core.crypto import key_files

logger = logging.getLogger(__name__)

# How long a process may continue to encrypt with the old first key.
REFRESH_INTERVAL_S = 5.0
SETTING_NAME = "BONOBOT_FIELD_KEYS"
# How long MCP clients may keep an encrypted state: old keys must decrypt it until then.
SEALED_STATE_LIFETIME = timedelta(hours=24)


class _KeyFileState:
    """When this process last checked the file, and its state then."""

    lock = threading.Lock()
    checked_at = time.monotonic()
    stamp: tuple[int, ...] | None = None
    keys: tuple[str, ...] = tuple(settings.FIELD_ENCRYPTION_KEY)


def seal(text: str) -> str:
    """Encrypt a text with the first key."""
    refresh_keys()
    token: bytes = library.encrypt_str(text)
    return token.decode("ascii")


def unseal(token: str) -> str:
    """Decrypt a token; raises `InvalidToken` if no key fits."""
    try:
        plain_text: str = library.decrypt_str(token)
    except InvalidToken:
        if not refresh_keys(force=True):
            raise
        plain_text = library.decrypt_str(token)
    return plain_text


def is_current(token: str) -> bool:
    """Return whether a token is encrypted with the first key."""
    try:
        get_sealing_key().decrypt(token.encode("utf-8"))
    except InvalidToken:
        return False
    return True


def rotate_token(token: str) -> str:
    """Encrypt a token again with the first key; raises `InvalidToken`."""
    return str(library.CRYPTER.rotate(token.encode("utf-8")).decode("ascii"))


def get_sealing_key() -> Fernet:
    key: Fernet = library.CRYPTER._fernets[0]
    return key


def count_keys() -> int:
    return len(library.CRYPTER._fernets)


def refresh_keys(*, force: bool = False) -> bool:
    """Reload the keys if the file has changed; return whether they changed."""
    path: Path | None = settings.BONOBOT_FIELD_KEYS_PATH
    if path is None or (
        not force and time.monotonic() - _KeyFileState.checked_at < REFRESH_INTERVAL_S
    ):
        return False
    with _KeyFileState.lock:
        _KeyFileState.checked_at, stamp = time.monotonic(), read_file_stamp(path)
        if stamp is None or stamp == _KeyFileState.stamp:
            return False
        try:
            keys = key_files.parse_field_keys(path.read_text(encoding="utf-8"), name=SETTING_NAME)
        except (OSError, UnicodeDecodeError, ImproperlyConfigured):
            logger.exception("The changed file of keys can't be used; the known keys hold")
            return False
        _KeyFileState.stamp = stamp
        if tuple(keys) == _KeyFileState.keys:
            return False
        library.CRYPTER, _KeyFileState.keys = (
            MultiFernet([Fernet(key) for key in keys]),
            tuple(keys),
        )
        logger.info("The keys of sealed values were read again: %d", len(keys))
        return True


def read_file_stamp(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes with the file; None if it doesn't exist."""
    try:
        stat_result = os.stat(path)  # noqa: PTH116 - follows the links that secrets are mounted by
    except OSError:
        return None
    return stat_result.st_ino, stat_result.st_size, stat_result.st_mtime_ns
