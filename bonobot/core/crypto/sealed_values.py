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
from bonobot.core.text.masking import MASK, learn, register_secret

VERSION = 1


class UnreadableSecret(Problem):
    """A stored secret can't be decrypted: another key, another location, or never encrypted."""

    code = "secret_unreadable"
    status = 409
    title = "A stored secret can't be read"


class SecretLocation(NamedTuple):
    """The location of a secret: the field's label, the row's key, the organization's key."""

    label: str
    row: str
    organization: str


class SealedValue:
    """A secret or none: false if empty, shown as `********`, decrypted by `open()`."""

    __slots__ = ("_codec", "_text", "_token", "place")

    def __init__(
        self,
        codec: "SecretCodec",
        *,
        text: str = "",
        token: str = "",
        place: SecretLocation | None = None,
    ) -> None:
        """Store either a new plain `text` or the `token` from the database."""
        self._codec = codec
        self._text = text
        self._token = token
        self.place = place

    def open(self) -> Any:
        """Return the secret; raises UnreadableSecret if it can't be decrypted here."""
        if not self:
            return self._codec.empty()
        text = _unseal_text(self._token, self._known_place()) if self._token else self._text
        value = self._codec.read(text)
        self._codec.remember(value, self.place)
        return value

    def sealed_text(self) -> str:
        """Return the column's value; raises UnreadableSecret if it couldn't be decrypted."""
        if not self:
            return ""
        place = self._known_place()
        if not self._token:
            self._codec.remember(self._codec.read(self._text), place)
            return _seal_text(self._text, place)
        _unseal_text(self._token, place)
        return self._token

    def at(self, place: SecretLocation | None) -> "SealedValue":
        """Return the same value bound to `location`."""
        return SealedValue(self._codec, text=self._text, token=self._token, place=place)

    @property
    def mark(self) -> str:
        """An identifier of the stored value that doesn't require decryption."""
        return self._token

    @property
    def stored(self) -> bool:
        """Whether the value came from the database."""
        return bool(self._token)

    def _known_place(self) -> SecretLocation:
        if self.place is None:
            raise TypeError("A sealed value has to be read from its row: `values()` can't open it.")
        return self.place

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

    def empty(self) -> Any:
        """Return the value for no secret."""
        return ""

    def written(self, value: Any) -> str:
        """Return the text of a value; raises TypeError or ValueError if it can't be encoded."""
        if not isinstance(value, str):
            raise TypeError(f"A sealed text must be a `str`, not a `{type(value).__name__}`.")
        return value

    def read(self, text: str) -> Any:
        """Return the value of an encoded text."""
        return text

    def remember(self, value: Any, place: SecretLocation | None = None) -> None:
        """Mask a value's texts in logs, and in data of the organization of `location`."""
        if self.remembered:
            for part in self.parts(value):
                register_secret(part)
                if place is not None and place.organization:
                    learn(place.organization, part)

    def parts(self, value: Any) -> Iterator[str]:
        """Yield the texts in a value that must be masked."""
        yield value


class JSONSecretCodec(SecretCodec):
    """Encodes values as JSON; an empty object means no secret."""

    def empty(self) -> Any:
        """Return the value for no secret."""
        return {}

    def written(self, value: Any) -> str:
        """Return the JSON text of a value; raises TypeError or ValueError if it isn't JSON."""
        return json.dumps(value, ensure_ascii=True, allow_nan=False)

    def read(self, text: str) -> Any:
        """Return the value of an encoded text."""
        return json.loads(text)

    def parts(self, value: Any) -> Iterator[str]:
        """Yield the texts in a value that must be masked."""
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                yield from self.parts(item)


def can_unseal(token: str) -> bool:
    """Return whether one of the keys decrypts a stored token, whatever its location."""
    try:
        key_ring.unseal(token)
    except (InvalidToken, ValueError, TypeError):
        return False
    return True


def _seal_text(text: str, place: SecretLocation) -> str:
    return key_ring.seal(json.dumps([VERSION, *place, text]))


def _unseal_text(token: str, place: SecretLocation) -> str:
    try:
        version, label, row, organization, text = json.loads(key_ring.unseal(token))
    except (InvalidToken, ValueError, TypeError):  # another key, or not encrypted by us
        raise _build_unreadable_error(place) from None
    if version != VERSION or SecretLocation(label, row, organization) != place:
        raise _build_unreadable_error(place)
    return str(text)


def _build_unreadable_error(place: SecretLocation) -> UnreadableSecret:
    return UnreadableSecret(
        format_message(
            "The secret `{place}` of {row} can't be opened: it was sealed "
            "with another key or for another place.",
            place=place.label,
            row=place.row,
        ),
        remedy="Enter it again. If many fail, restore the key in `BONOBOT_FIELD_KEYS`.",
    )
