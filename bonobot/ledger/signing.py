"""Signing: statements about a chain that can be checked without the database.

Pure. A statement is a flat JSON object; its signature (Ed25519) covers the canonical text of all
its other members. The first key signs, all of them are believed, so that keys can be changed.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bonobot.lib.canonical import canonical

Statement = Mapping[str, Any]


class Signer:
    """Signs and checks with a list of private keys (32 bytes, URL-safe base64 each)."""

    def __init__(self, keys: Iterable[str]) -> None:
        private = [Ed25519PrivateKey.from_private_bytes(_bytes(key)) for key in keys]
        self._first = private[0]
        self._public = {key_id(key.public_key()): key.public_key() for key in private}

    @property
    def public_keys(self) -> dict[str, str]:
        """Return the public keys by id, for whoever checks elsewhere."""
        return {name: _text(_raw(key)) for name, key in self._public.items()}

    def sign(self, facts: Statement) -> dict[str, Any]:
        """Return the facts with `key` and `signature`."""
        stated = {**facts, "key": key_id(self._first.public_key())}
        return {**stated, "signature": _text(self._first.sign(_covered(stated)))}

    def holds(self, statement: Statement) -> bool:
        """Tell whether one of our keys signed exactly this."""
        key = self._public.get(str(statement.get("key")))
        try:
            signature = _bytes(str(statement.get("signature")))
            if key is None:
                return False
            key.verify(signature, _covered(statement))
        except (InvalidSignature, ValueError):
            return False
        return True


def key_id(key: Ed25519PublicKey) -> str:
    """Return the short name of a public key: the start of its SHA-256."""
    return hashlib.sha256(_raw(key)).hexdigest()[:16]


def _covered(statement: Statement) -> bytes:
    return canonical({k: v for k, v in statement.items() if k != "signature"}).encode("ascii")


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, altchars=b"-_", validate=True)
