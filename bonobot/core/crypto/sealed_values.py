"""Sealed: encrypted text bound to its row.

Fernet can't authenticate more than its message, so the place (field, row, organization) is part of
the message and compared when a token is opened.
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
    """A stored secret that can't be opened: another key, another place, or never sealed."""

    code = "secret_unreadable"
    status = 409
    title = "A stored secret can't be read"


class SecretLocation(NamedTuple):
    """Where a secret belongs: the field's label, the row's key, the organization's key."""

    label: str
    row: str
    organization: str


class SealedValue:
    """A secret, or the lack of one: false when empty, `********` when shown, plain by `open()`."""

    __slots__ = ("_codec", "_text", "_token", "place")

    def __init__(
        self,
        codec: "SecretCodec",
        *,
        text: str = "",
        token: str = "",
        place: SecretLocation | None = None,
    ) -> None:
        """Hold the text that was just given, or the token that the database keeps."""
        self._codec = codec
        self._text = text
        self._token = token
        self.place = place

    def open(self) -> Any:
        """Return the secret; raise UnreadableSecret if it can't be opened where it is."""
        if not self:
            return self._codec.empty()
        text = _unseal_text(self._token, self._known_place()) if self._token else self._text
        value = self._codec.read(text)
        self._codec.remember(value, self.place)
        return value

    def sealed_text(self) -> str:
        """Return what the column keeps; raise UnreadableSecret rather than keep what won't open."""
        if not self:
            return ""
        place = self._known_place()
        if not self._token:
            self._codec.remember(self._codec.read(self._text), place)
            return _seal_text(self._text, place)
        _unseal_text(self._token, place)
        return self._token

    def at(self, place: SecretLocation | None) -> "SealedValue":
        """Return the same value as one that belongs to `place`."""
        return SealedValue(self._codec, text=self._text, token=self._token, place=place)

    @property
    def mark(self) -> str:
        """What tells this stored value from every other, without opening it."""
        return self._token

    @property
    def stored(self) -> bool:
        """Tell whether the value came from the database."""
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
    """How a field's values become text: here, they are text."""

    def __init__(self, *, remembered: bool = True) -> None:
        """Let logs know the texts that pass, unless they are whole documents (`remembered`)."""
        self.remembered = remembered

    def empty(self) -> Any:
        """Return the value that stands for no secret."""
        return ""

    def written(self, value: Any) -> str:
        """Return the text of a value; raise TypeError or ValueError for what has none."""
        if not isinstance(value, str):
            raise TypeError(f"A sealed text must be a `str`, not a `{type(value).__name__}`.")
        return value

    def read(self, text: str) -> Any:
        """Return the value of a text."""
        return text

    def remember(self, value: Any, place: SecretLocation | None = None) -> None:
        """Have the logs mask the texts in a value from now on, and all that `place` owns."""
        if self.remembered:
            for part in self.parts(value):
                register_secret(part)
                if place is not None and place.organization:
                    learn(place.organization, part)

    def parts(self, value: Any) -> Iterator[str]:
        """Yield the texts in a value that logs must not show."""
        yield value


class JSONSecretCodec(SecretCodec):
    """Values are JSON; an empty object stands for no secret."""

    def empty(self) -> Any:
        """Return the value that stands for no secret."""
        return {}

    def written(self, value: Any) -> str:
        """Return the text of a value; raise TypeError or ValueError for what has none."""
        return json.dumps(value, ensure_ascii=True, allow_nan=False)

    def read(self, text: str) -> Any:
        """Return the value of a text."""
        return json.loads(text)

    def parts(self, value: Any) -> Iterator[str]:
        """Yield the texts in a value that logs must not show."""
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                yield from self.parts(item)


def can_unseal(token: str) -> bool:
    """Tell whether one of the keys opens a stored token, wherever it belongs."""
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
    except (InvalidToken, ValueError, TypeError):  # another key, or never sealed by us
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
