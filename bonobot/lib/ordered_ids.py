"""Ids that are ordered by the time at which they were made: UUIDs of version 7 (RFC 9562).

An index of them grows at its end: rows that are written together lie on one page of it, and those
of an old, large table needn't be read to add to it.
"""

import os
import time
from uuid import UUID

_VERSION = 0x7 << 76
_VARIANT = 0b10 << 62


def ordered_id() -> UUID:
    """Return a new id: 48 bits of milliseconds since 1970, then 74 random ones."""
    made = (time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF) << 80
    chance = int.from_bytes(os.urandom(10), "big")
    first, rest = chance >> 62 & 0xFFF, chance & (1 << 62) - 1
    return UUID(int=made | _VERSION | first << 64 | _VARIANT | rest)
