"""Webhook signatures, signed statements and keyed fingerprints.

Webhooks: `Bonobot-Signature` is `v1=` and the hexadecimal HMAC-SHA256, with the shared secret, of
the header `Bonobot-Timestamp` (seconds since 1970), a dot, and the raw body.

Statements: a flat JSON object; its Ed25519 signature covers the canonical JSON of all other fields.
The first key signs, all keys verify, so that keys can be rotated.

Fingerprints: HMAC-SHA-256, because a plain digest of `{"pin": "1234"}` can be guessed. The key is
derived from the installation's first audit key and the organization, so equal values of two
organizations differ and the database alone doesn't allow guessing.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from uuid import UUID

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from django.conf import settings

from bonobot.core.text.canonical_json import to_canonical_json

TIMESTAMP_HEADER = "Bonobot-Timestamp"
SIGNATURE_HEADER = "Bonobot-Signature"
# The maximum age of a signature, including clock skew; older requests may be replays.
TOLERANCE_S = 300
Statement = Mapping[str, Any]
FINGERPRINT_PURPOSE = b"bonobot audit fingerprint"


def sign_body(secret: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a body sent at `timestamp`."""
    message = f"{timestamp}.".encode() + body
    return "v1=" + hmac.new(secret.encode(), message, "sha256").hexdigest()


def is_valid_signature(
    secret: str, timestamp: str, signature: str, body: bytes, *, now: float
) -> bool:
    """Return whether a body was signed with the secret within `TOLERANCE_S`."""
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12):
        return False
    expected = sign_body(secret, int(timestamp), body)
    matches = hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace"))
    return matches and abs(now - int(timestamp)) <= TOLERANCE_S


class StatementSigner:
    """Signs and verifies statements with private keys (each 32 bytes, URL-safe base64)."""

    def __init__(self, keys: Iterable[str]) -> None:
        private_keys = [Ed25519PrivateKey.from_private_bytes(_decode_base64(key)) for key in keys]
        self._signing_key = private_keys[0]
        self._verifying_keys = {
            compute_key_id(key.public_key()): key.public_key() for key in private_keys
        }

    @property
    def public_keys(self) -> dict[str, str]:
        """The public keys by id, for external verification."""
        return {
            name: _encode_base64(_encode_public_key(key))
            for name, key in self._verifying_keys.items()
        }

    def sign(self, facts: Statement) -> dict[str, Any]:
        """Return the facts with `key` and `signature` added."""
        statement = {**facts, "key": compute_key_id(self._signing_key.public_key())}
        return {
            **statement,
            "signature": _encode_base64(self._signing_key.sign(_encode_statement(statement))),
        }

    def is_valid(self, statement: Statement) -> bool:
        """Return whether one of the keys signed this statement."""
        key = self._verifying_keys.get(str(statement.get("key")))
        try:
            signature = _decode_base64(str(statement.get("signature")))
            if key is None:
                return False
            key.verify(signature, _encode_statement(statement))
        except (InvalidSignature, ValueError):
            return False
        return True


def compute_key_id(key: Ed25519PublicKey) -> str:
    """Return the id of a public key: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(_encode_public_key(key)).hexdigest()[:16]


def _encode_statement(statement: Statement) -> bytes:
    return to_canonical_json({k: v for k, v in statement.items() if k != "signature"}).encode(
        "ascii"
    )


def _encode_public_key(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def _encode_base64(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode("ascii")


def _decode_base64(text: str) -> bytes:
    return base64.b64decode(text, altchars=b"-_", validate=True)


def compute_fingerprint(organization_id: UUID, text: str) -> str:
    """Return the hexadecimal fingerprint of a canonical text in an organization."""
    inner, outer = _build_keyed_hashes(settings.BONOBOT_AUDIT_KEYS[0], organization_id.int)
    inner, outer = inner.copy(), outer.copy()
    inner.update(text.encode("utf-8", "surrogatepass"))
    outer.update(inner.digest())
    return str(outer.hexdigest())


@lru_cache(maxsize=1024)
def _build_keyed_hashes(secret: str, organization_number: int) -> tuple[Any, Any]:
    """Return the inner and outer hash of HMAC initialized with the key; copy before use.

    The organization is named by the number of its UUID, whose hash is computed in C.
    """
    organization_id = organization_number.to_bytes(16, "big")
    key = hmac.digest(secret.encode("ascii"), FINGERPRINT_PURPOSE + organization_id, hashlib.sha256)
    block = key.ljust(hashlib.sha256().block_size, b"\0")
    # RFC 2104: the key is padded to a block and XORed with one byte per hash.
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
    return inner, hashlib.sha256(bytes(byte ^ 0x5C for byte in block))
