"""JSON whose members stay in their order: of a form's fields, which people read from the top."""

import json
from typing import Any

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
