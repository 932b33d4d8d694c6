"""Fingerprints: what a call was asked with and what it gave, told apart without being shown.

Keyed (HMAC-SHA-256): a plain digest of `{"pin": "1234"}` is found by trying. The key comes from the
installation's first audit key and the organization, so equal values of two organizations look
different, and whoever has only the database can try nothing.
"""

import hashlib
import hmac
from functools import lru_cache
from uuid import UUID

from django.conf import settings

PURPOSE = b"bonobot audit fingerprint"


def fingerprint(organization_id: UUID, text: str) -> str:
    """Return the fingerprint of a canonical text in an organization, in hexadecimal."""
    key = _key(settings.BONOBOT_AUDIT_KEYS[0], organization_id)
    return hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256").hex()


@lru_cache(maxsize=1024)
def _key(secret: str, organization_id: UUID) -> bytes:
    return hmac.digest(secret.encode("ascii"), PURPOSE + organization_id.bytes, hashlib.sha256)
