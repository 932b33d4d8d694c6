"""Ordered JSON field; UUIDv7 ids.

An index of them grows at its end: rows that are written together lie on one page of it, and those
of an old, large table needn't be read to add to it.
"""

import json
import os
import time
from typing import Any
from uuid import UUID

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper


class OrderedJSONField(models.JSONField):
    """A `JSONField` kept as its text on PostgreSQL too, whose `jsonb` sorts members by length."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        """Return PostgreSQL's `json`; elsewhere it is text already."""
        return "json" if connection.vendor == "postgresql" else super().db_type(connection)

    def get_db_prep_value(
        self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False
    ) -> Any:
        """Return the text that is kept; the `jsonb` that Django would send has lost the order."""
        if connection.vendor != "postgresql":
            return super().get_db_prep_value(value, connection, prepared)
        return None if value is None else json.dumps(value, cls=self.encoder)

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        """Return the value; psycopg has read a `json` already, unlike a `jsonb`."""
        if connection.vendor == "postgresql":
            return value
        return super().from_db_value(value, expression, connection)


_VERSION = 0x7 << 76
_VARIANT = 0b10 << 62


def generate_uuid7() -> UUID:
    """Return a new id: 48 bits of milliseconds since 1970, then 74 random ones."""
    made = (time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF) << 80
    chance = int.from_bytes(os.urandom(10), "big")
    first, rest = chance >> 62 & 0xFFF, chance & (1 << 62) - 1
    return UUID(int=made | _VERSION | first << 64 | _VARIANT | rest)
