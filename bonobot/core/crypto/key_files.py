"""Generate and read key files.

Processes that start at the same time must get the same key: the folder is locked while one of them
creates it, and files are written atomically.
"""

import base64
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured

MAX_PEPPER_NUMBER = 32_767  # the maximum of the database column
MAX_FIRST_PEPPER_NUMBER = 9_999  # the first number is random up to this; later peppers are higher
MIN_PEPPER_LENGTH = 32
SIGNING_KEY_BYTES = 32


def read_or_create_text(path: Path, generate: Callable[[], str]) -> str:
    """Return the text of a file; create the file if it is missing or empty."""
    try:
        return path.read_text(encoding="utf-8").strip() or _create_text(path, generate)
    except FileNotFoundError:
        return _create_text(path, generate)
    except OSError as error:
        raise _build_unusable_error(path, error) from error


def list_exposed_key_files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the key files that other users can read or write, with their modes."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            yield path, mode


def ensure_private_folder(path: Path) -> Path:
    """Create a folder and its missing parents with mode 0700; return its path."""
    missing_parents = [parent for parent in path.parents if not parent.exists()]
    try:
        for folder in (*reversed(missing_parents), path):
            folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _build_unusable_error(path, error) from error
    return path


def parse_field_keys(value: str, *, name: str) -> list[str]:
    """Return the Fernet keys of a list; the first encrypts, all decrypt."""
    keys = value.replace(",", " ").split()
    for key in keys:
        try:
            Fernet(key)
        except ValueError as error:
            raise ImproperlyConfigured(
                f"`{name}` must be a comma-separated list of Fernet keys (32 bytes, url-safe "
                "base64); `openssl rand -base64 32 | tr +/ -_` makes one."
            ) from error
    if not keys:
        raise ImproperlyConfigured(f"`{name}` must name at least one Fernet key.")
    return keys


def parse_peppers(value: str, *, name: str) -> dict[int, str]:
    """Return the token peppers by number; new tokens use the highest one."""
    peppers: dict[int, str] = {}
    for entry in value.replace(",", " ").split():
        number, _, pepper = entry.partition(":")
        is_valid_number = number.isdecimal() and int(number[:6]) <= MAX_PEPPER_NUMBER
        if not is_valid_number or len(pepper) < MIN_PEPPER_LENGTH or int(number) in peppers:
            raise ImproperlyConfigured(
                f"`{name}` must be a comma-separated list of `number:pepper` with different "
                f"numbers up to {MAX_PEPPER_NUMBER} and peppers of at least {MIN_PEPPER_LENGTH} "
                "characters."
            )
        peppers[int(number)] = pepper
    if not peppers:
        raise ImproperlyConfigured(f"`{name}` must name at least one `number:pepper`.")
    return peppers


def parse_signing_keys(value: str, *, name: str) -> list[str]:
    """Return the private Ed25519 keys of a list; the first signs, all verify."""
    keys = value.replace(",", " ").split()
    for key in keys:
        try:
            is_valid = (
                len(base64.b64decode(key, altchars=b"-_", validate=True)) == SIGNING_KEY_BYTES
            )
        except ValueError:
            is_valid = False
        if not is_valid:
            raise ImproperlyConfigured(
                f"`{name}` must be a comma-separated list of Ed25519 keys (32 bytes, url-safe "
                "base64)."
            )
    if not keys:
        raise ImproperlyConfigured(f"`{name}` must name at least one Ed25519 key.")
    return keys


def generate_secret_key() -> str:
    """Return a new `SECRET_KEY` for Django."""
    return secrets.token_urlsafe(64)


def generate_field_key() -> str:
    return Fernet.generate_key().decode("ascii")


def generate_signing_key() -> str:
    """Return a new key for signatures of the audit log."""
    return base64.urlsafe_b64encode(secrets.token_bytes(SIGNING_KEY_BYTES)).decode("ascii")


def generate_peppers() -> str:
    """Return a first token pepper; its random number reveals a replaced pepper."""
    return f"{1 + secrets.randbelow(MAX_FIRST_PEPPER_NUMBER)}:{secrets.token_urlsafe(48)}"


def _create_text(path: Path, generate: Callable[[], str]) -> str:
    with lock_folder(ensure_private_folder(path.parent)):
        if path.exists() and (text := path.read_text(encoding="utf-8").strip()):
            return text  # another process created it while we waited for the lock
        value = generate()
        replace_file(path, value)
        return value


def replace_file(path: Path, value: str) -> None:
    """Write a file of mode 0600 atomically."""
    temporary_path = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{value}\n")
            file.flush()
            os.fsync(file.fileno())
        temporary_path.replace(path)
    except OSError as error:
        raise _build_unusable_error(path, error) from error


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder of keys against other processes."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _build_unusable_error(path: Path, error: OSError) -> ImproperlyConfigured:
    return ImproperlyConfigured(
        f"`BONOBOT_VAR` must be a folder this user may write: {str(path)!r} is unusable ({error})."
    )
