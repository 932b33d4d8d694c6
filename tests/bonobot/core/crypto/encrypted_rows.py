"""A model with encrypted fields that belongs to no installed app, and access to its columns."""

import uuid
from typing import Any

from django.db import connection, models

from bonobot.core.crypto.encrypted_fields import SealedJSONField, SealedTextField

SECRET = "s3cr3t-of-the-first-row"
FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)


class Row(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    organization_id = models.UUIDField(null=True)
    name = models.CharField(max_length=20, blank=True)
    secret = SealedTextField(blank=True, default="")
    other = SealedTextField(null=True)
    document = SealedJSONField(blank=True, default=dict)

    class Meta:
        app_label = "sealed_tests"

    def __str__(self) -> str:
        return self.name


def read_column(row: Row, name: str = "secret") -> Any:
    """Return the stored value."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {name} FROM sealed_tests_row WHERE id = %s",  # noqa: S608
            [row.pk.hex if connection.vendor == "sqlite" else row.pk],
        )
        return cursor.fetchone()[0]


def write_column(row: Row, value: str, name: str = "secret") -> None:
    """Write the stored value directly, as an attacker or an accident could."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE sealed_tests_row SET {name} = %s WHERE id = %s",  # noqa: S608
            [value, row.pk.hex if connection.vendor == "sqlite" else row.pk],
        )


def reload(row: Row) -> Row:
    return Row.objects.get(pk=row.pk)
