"""Signatures of webhooks, those that are sent and those that come in. Pure.

`Bonobot-Signature` is `v1=` and the hexadecimal HMAC-SHA256, by the shared secret, of the header
`Bonobot-Timestamp` (seconds since 1970), a dot, and the body as it came.
"""

import hmac

TIMESTAMP = "Bonobot-Timestamp"
SIGNATURE = "Bonobot-Signature"
# How far the clocks of sender and receiver may differ, with the way; older ones may be replayed.
TOLERANCE_S = 300


def sign(secret: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a body that was made at `timestamp`."""
    signed = f"{timestamp}.".encode() + body
    return "v1=" + hmac.new(secret.encode(), signed, "sha256").hexdigest()


def is_signed(secret: str, timestamp: str, signature: str, body: bytes, *, now: float) -> bool:
    """Tell whether a body was signed with the secret, and lately."""
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12):
        return False
    wanted = sign(secret, int(timestamp), body)
    right = hmac.compare_digest(wanted.encode(), signature.encode("utf-8", "replace"))
    return right and abs(now - int(timestamp)) <= TOLERANCE_S
