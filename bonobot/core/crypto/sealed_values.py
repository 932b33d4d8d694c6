"""Encrypted values that are bound to their row.

Fernet has no associated data, so the location (field, row, organization) is part of the encrypted
message and is compared on decryption.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from cryptography.fernet import InvalidToken

from bonobot.core.crypto import key_ring
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.text.masking import MASK, register_organization_secret, register_secret

FORMAT_VERSION = 1


class UnreadableSecret(Problem):
    """A stored secret can't be decrypted: another key, another location, or never encrypted."""

    code = "secret_unreadable"
    status = 409
    title = "Stored secret can't be decrypted"


class SecretLocation(NamedTuple):
    """The location of a secret: the field's label, the row's key, the organization's key."""

    label: str
    row: str
    organization: str


class SealedValue:
    """A secret or none: false if empty, shown as `********`, decrypted by `open()`."""

    __slots__ = ("_codec", "_text", "_token", "location")

    def __init__(
        self,
        codec: "SecretCodec",
        *,
        text: str = "",
        token: str = "",
        location: SecretLocation | None = None,
    ) -> None:
        """Store either a new plain `text` or the `token` from the database."""
        self._codec = codec
        self._text = text
        self._token = token
        self.location = location

    def open(self) -> Any:
        """Return the secret; raises UnreadableSecret if it can't be decrypted here."""
        if not self:
            return self._codec.get_empty_value()
        text = _unseal_text(self._token, self._get_location()) if self._token else self._text
        value = self._codec.decode(text)
        self._codec.register_secrets(value, self.location)
        return value

    def to_sealed_text(self) -> str:
        """Return the column's value; raises UnreadableSecret if it couldn't be decrypted."""
        if not self:
            return ""
        location = self._get_location()
        if not self._token:
            self._codec.register_secrets(self._codec.decode(self._text), location)
            return _seal_text(self._text, location)
        _unseal_text(self._token, location)
        return self._token

    def bind_to_location(self, location: SecretLocation | None) -> "SealedValue":
        """Return the same value bound to `location`."""
        return SealedValue(self._codec, text=self._text, token=self._token, location=location)

    @property
    def mark(self) -> str:
        """An identifier of the stored value that doesn't require decryption."""
        return self._token

    @property
    def stored(self) -> bool:
        """Whether the value came from the database."""
        return bool(self._token)

    def _get_location(self) -> SecretLocation:
        if self.location is None:
            raise TypeError("A sealed value has to be read from its row: `values()` can't open it.")
        return self.location

    def __bool__(self) -> bool:
        return bool(self._token or self._text)

    def __str__(self) -> str:
        return MASK if self else ""

    def __repr__(self) -> str:
        return MASK

    def __copy__(self) -> "SealedValue":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "SealedValue":
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("A sealed value can't be pickled: pass the row's key instead.")


class SecretCodec:
    """Encodes a field's values as text; here, values are text."""

    def __init__(self, *, remembered: bool = True) -> None:
        """Mask the values in logs if `remembered`; false for whole documents."""
        self.remembered = remembered

    def get_empty_value(self) -> Any:
        return ""

    def encode(self, value: Any) -> str:
        """Return the text of a value; raises TypeError or ValueError if it can't be encoded."""
        if not isinstance(value, str):
            raise TypeError(f"A sealed text must be a `str`, not a `{type(value).__name__}`.")
        return value

    def decode(self, text: str) -> Any:
        return text

    def register_secrets(self, value: Any, location: SecretLocation | None = None) -> None:
        """Mask a value's texts in logs, and in data of the organization of `location`."""
        if self.remembered:
            for text in self.iterate_texts(value):
                register_secret(text)
                if location is not None and location.organization:
                    register_organization_secret(location.organization, text)

    def iterate_texts(self, value: Any) -> Iterator[str]:
        """Yield the texts in a value that must be masked."""
        yield value


class JSONSecretCodec(SecretCodec):
    """Encodes values as JSON; an empty object means no secret."""

    def get_empty_value(self) -> Any:
        return {}

    def encode(self, value: Any) -> str:
        """Return the JSON text of a value; raises TypeError or ValueError if it isn't JSON."""
        return json.dumps(value, ensure_ascii=True, allow_nan=False)

    def decode(self, text: str) -> Any:
        return json.loads(text)

    def iterate_texts(self, value: Any) -> Iterator[str]:
        """Yield the texts in a value that must be masked."""
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                yield from self.iterate_texts(item)


def can_unseal(token: str) -> bool:
    """Return whether one of the keys decrypts a stored token, regardless of its location."""
    try:
        key_ring.unseal(token)
    except (InvalidToken, ValueError, TypeError):
        return False
    return True


def _seal_text(text: str, location: SecretLocation) -> str:
    return key_ring.seal(json.dumps([FORMAT_VERSION, *location, text]))


def _unseal_text(token: str, location: SecretLocation) -> str:
    try:
        version, label, row, organization, text = json.loads(key_ring.unseal(token))
    # Another key, or not encrypted by us.
    except (InvalidToken, ValueError, RecursionError, TypeError):
        raise _build_unreadable_error(location) from None
    if version != FORMAT_VERSION or SecretLocation(label, row, organization) != location:
        raise _build_unreadable_error(location)
    return str(text)


def _build_unreadable_error(location: SecretLocation) -> UnreadableSecret:
    return UnreadableSecret(
        format_message(
            "The secret `{place}` of {row} can't be decrypted: it was encrypted with "
            "another key or for another field.",
            place=location.label,
            row=location.row,
        ),
        remedy="Enter the secret again. If this affects many secrets, restore the key in "
        "`BONOBOT_FIELD_KEYS`.",
    )
