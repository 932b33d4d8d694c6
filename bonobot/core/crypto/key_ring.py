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
LOOK_S = 5.0
NAME = "BONOBOT_FIELD_KEYS"
# How long MCP clients may keep an encrypted state: old keys must decrypt it until then.
SEALED_STATE_LIFETIME = timedelta(hours=24)


class _KeyFileState:
    """When this process last checked the file, and its state then."""

    lock = threading.Lock()
    at = time.monotonic()
    stamp: tuple[int, ...] | None = None
    keys: tuple[str, ...] = tuple(settings.FIELD_ENCRYPTION_KEY)


def seal(text: str) -> str:
    """Encrypt a text with the first key."""
    refresh_keys()
    sealed: bytes = library.encrypt_str(text)
    return sealed.decode("ascii")


def unseal(token: str) -> str:
    """Decrypt a token; raises `InvalidToken` if no key fits."""
    try:
        text: str = library.decrypt_str(token)
    except InvalidToken:
        if not refresh_keys(now=True):
            raise
        text = library.decrypt_str(token)
    return text


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
    """Return the key that encrypts."""
    found: Fernet = library.CRYPTER._fernets[0]
    return found


def count() -> int:
    """Return the number of keys."""
    return len(library.CRYPTER._fernets)


def refresh_keys(*, now: bool = False) -> bool:
    """Reload the keys if the file has changed; return whether they changed."""
    path: Path | None = settings.BONOBOT_FIELD_KEYS_PATH
    if path is None or (not now and time.monotonic() - _KeyFileState.at < LOOK_S):
        return False
    with _KeyFileState.lock:
        _KeyFileState.at, stamp = time.monotonic(), read_file_stamp(path)
        if stamp is None or stamp == _KeyFileState.stamp:
            return False
        try:
            found = key_files.field_keys(path.read_text(encoding="utf-8"), name=NAME)
        except (OSError, UnicodeDecodeError, ImproperlyConfigured):
            logger.exception("The changed file of keys can't be used; the known keys hold")
            return False
        _KeyFileState.stamp = stamp
        if tuple(found) == _KeyFileState.keys:
            return False
        library.CRYPTER, _KeyFileState.keys = (
            MultiFernet([Fernet(key) for key in found]),
            tuple(found),
        )
        logger.info("The keys of sealed values were read again: %d", len(found))
        return True


def read_file_stamp(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes with the file; None if it doesn't exist."""
    try:
        found = os.stat(path)  # noqa: PTH116 - follows the links that secrets are mounted by
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
