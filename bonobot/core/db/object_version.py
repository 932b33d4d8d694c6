"""Object versions: which parts of an object changed since it was read, without a history.

A version is computed from content and not stored. It is an opaque string: a digest of everything,
then one short digest per part (a field, a list of related rows, a form control). A writer sends the
version that they read, which shows what parts differ now. State that isn't edited (health, last
use, counters) isn't part of a version.
"""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any

from django.conf import settings
from django.db.models import Model
from django.utils.crypto import salted_hmac

from bonobot.core.crypto.encrypted_fields import SealedFieldMixin
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict
from bonobot.core.process_cache import compute_once
from bonobot.core.text.canonical_json import to_canonical_json

MAX_VERSION_LENGTH = 100_000  # characters
_WHOLE_LENGTH, _NAME_LENGTH, _VALUE_LENGTH = 16, 4, 6
_PART_LENGTH = _NAME_LENGTH + _VALUE_LENGTH
Check = Callable[[], None]
_pending_checks: ContextVar[list[Check] | None] = ContextVar("preconditions", default=None)


class VersionConflict(Conflict):
    """The object changed since the given version."""

    code = "version_conflict"
    title = "Changed in the meantime"

    def __init__(self, changed: Mapping[str, Any], version: str, *, field: str = "") -> None:
        """`changed` maps the differing parts to their current values; `version` is current."""
        super().__init__(
            format_message("Not saved. The object was changed in the meantime."),
            field=field,
            remedy=format_message(
                "Review the current values, then save again with the new version."
            ),
            extra={"changed": dict(changed), "version": version},
        )


class Unversioned(Conflict):
    """A version was sent for an object that has none."""

    code = "version_conflict"

    def __init__(self, *, code: str, status: int) -> None:
        super().__init__(
            format_message("This object has no version."),
            code=code,
            status=status,
            remedy=format_message("Send the request without a version."),
        )


class PreconditionFailed(VersionConflict):
    """The version in `If-Match` isn't the current one."""

    code = "precondition_failed"
    status = 412
    title = "The version doesn't match"


def compute_version(parts: Mapping[str, Any]) -> str:
    """Return the version of an object that consists of these parts (JSON values)."""
    marks = sorted(_compute_mark(name, value) for name, value in parts.items())
    return _compute_digest(_WHOLE_LENGTH, "".join(marks)) + "".join(marks)


def list_changed_parts(parts: Mapping[str, Any], version: str) -> list[str]:
    """Return the names of the parts that differ from `version`, including new ones.

    Removed parts aren't listed, so the list may be empty although the versions differ.
    """
    known_marks = _parse_marks(version)
    return [name for name, value in parts.items() if _compute_mark(name, value) not in known_marks]


def is_same_part(name: str, value: Any, version: str) -> bool:
    """Return whether a part had this value in `version`."""
    return _compute_mark(name, value) in _parse_marks(version)


def has_part(name: str, version: str) -> bool:
    """Return whether `version` has a part of this name."""
    name_digest = _compute_digest(_NAME_LENGTH, name)
    return any(mark.startswith(name_digest) for mark in _parse_marks(version))


def _parse_marks(version: str) -> frozenset[str]:
    return _split_marks(version[:MAX_VERSION_LENGTH])


def _split_marks(version: str) -> frozenset[str]:
    mark_text = version[_WHOLE_LENGTH:]
    return frozenset(
        mark_text[offset : offset + _PART_LENGTH]
        for offset in range(0, len(mark_text), _PART_LENGTH)
    )


def _compute_mark(name: str, value: Any) -> str:
    return _compute_digest(_NAME_LENGTH, name) + _compute_digest(
        _VALUE_LENGTH, f"{name}\0{to_canonical_json(value)}"
    )


def _compute_digest(characters: int, text: str) -> str:
    # Keyed, so that values can't be guessed from their short digests.
    keyed_hash = blake2b(
        text.encode("utf-8", "surrogatepass"), key=_derive_key(settings.SECRET_KEY)
    )
    return urlsafe_b64encode(keyed_hash.digest()).decode()[:characters].replace("=", "")


@compute_once
def _derive_key(secret: str) -> bytes:
    return salted_hmac("bonobot.object_version", "", secret=secret, algorithm="sha256").digest()


def is_current(parts: Mapping[str, Any], version: str) -> bool:
    """Return whether `version` is the version of these parts."""
    return hmac.compare_digest(compute_version(parts).encode(), version.encode())


def collect_secret_marks(instance: Any) -> dict[str, str]:
    """Return a mark for each stored secret of a row, which changes with the secret.

    A model that stores secrets in related rows adds their marks in `related_secret_marks`.
    """
    if not isinstance(instance, Model):
        return {}
    names = [f.name for f in instance._meta.concrete_fields if isinstance(f, SealedFieldMixin)]
    secrets_by_name = {name: getattr(instance, name) for name in names}
    if any(
        value and not value.stored for value in secrets_by_name.values()
    ):  # just set: read the stored
        stored_row = type(instance)._base_manager.only(*names).get(pk=instance.pk)
        secrets_by_name = {name: getattr(stored_row, name) for name in names}
    related: dict[str, str] = getattr(instance, "related_secret_marks", dict)()
    return {name: value.mark for name, value in secrets_by_name.items()} | related


@contextmanager
def open_scope() -> Iterator[None]:
    """Limit the preconditions that are added inside to the changes made inside."""
    token = _pending_checks.set([])
    try:
        yield
    finally:
        _pending_checks.reset(token)


def add_precondition(check: Check) -> None:
    """Run `check` when the first change of this scope begins; it raises to refuse the change."""
    checks = _pending_checks.get()
    if checks is None:
        raise RuntimeError("There is no scope to require anything in.")
    checks.append(check)


def run_checks() -> None:
    """Run the pending checks once; call it inside the transaction of a change."""
    checks = _pending_checks.get()
    while checks:
        checks.pop()()
