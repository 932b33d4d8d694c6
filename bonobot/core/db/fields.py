"""A JSON field that keeps the order of keys, and UUIDv7 ids.

UUIDv7 is time-ordered: an index grows at its end, so rows written together share index pages.
"""

import json
import os
import time
from typing import Any
from uuid import UUID

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

_VERSION = 0x7 << 76
_VARIANT = 0b10 << 62


class OrderedJSONField(models.JSONField):
    """A `JSONField` that is `json` on PostgreSQL, because `jsonb` doesn't keep the key order."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        """Return `json` on PostgreSQL; other databases store text anyway."""
        return "json" if connection.vendor == "postgresql" else super().db_type(connection)

    def get_db_prep_value(
        self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False
    ) -> Any:
        """Return the JSON text; Django would send `jsonb`, which loses the order."""
        if connection.vendor != "postgresql":
            return super().get_db_prep_value(value, connection, prepared)
        return None if value is None else json.dumps(value, cls=self.encoder)

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        """Return the value; psycopg has already decoded `json`, unlike `jsonb`."""
        if connection.vendor == "postgresql":
            return value
        return super().from_db_value(value, expression, connection)


def generate_uuid7() -> UUID:
    """Return a new UUIDv7: 48 bits of milliseconds since 1970 and 74 random bits."""
    timestamp_bits = (time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF) << 80
    random_bits = int.from_bytes(os.urandom(10), "big")
    random_high, random_low = random_bits >> 62 & 0xFFF, random_bits & (1 << 62) - 1
    return UUID(int=timestamp_bits | _VERSION | random_high << 64 | _VARIANT | random_low)
