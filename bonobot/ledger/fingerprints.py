"""Fingerprints: what a call was asked with and what it gave, told apart without being shown.

Keyed (HMAC-SHA-256): a plain digest of `{"pin": "1234"}` is found by trying. The key comes from the
installation's first audit key and the organization, so equal values of two organizations look
different, and whoever has only the database can try nothing.
"""

import hashlib
import hmac
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.conf import settings

PURPOSE = b"bonobot audit fingerprint"


def fingerprint(organization_id: UUID, text: str) -> str:
    """Return the fingerprint of a canonical text in an organization, in hexadecimal."""
    inner, outer = _keyed(settings.BONOBOT_AUDIT_KEYS[0], organization_id)
    inner, outer = inner.copy(), outer.copy()
    inner.update(text.encode("utf-8", "surrogatepass"))
    outer.update(inner.digest())
    return outer.hexdigest()


@lru_cache(maxsize=1024)
def _keyed(secret: str, organization_id: UUID) -> tuple[Any, Any]:
    """Return the two hashes of HMAC with the key in them, to be copied and gone on with."""
    key = hmac.digest(secret.encode("ascii"), PURPOSE + organization_id.bytes, hashlib.sha256)
    block = key.ljust(hashlib.sha256().block_size, b"\0")
    # RFC 2104: the key is padded to a block and mixed with one byte for either hash.
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
    return inner, hashlib.sha256(bytes(byte ^ 0x5C for byte in block))
