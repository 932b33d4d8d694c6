"""Rows that save only the columns changed since they were read.

Django's `save` writes every column, which reverts concurrent changes and recreates deleted rows.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Self

from django.db import DatabaseError, models

from bonobot.core.crypto.sealed_values import SealedValue
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from bonobot.core.text.canonical_json import to_sorted_json

# Django's message when `update_fields` matched no row.
NOTHING_THERE = "did not affect any rows"


class SavesChangedFields(models.Model):
    """A model whose `save` without `update_fields` writes the changed columns only."""

    # Whether in-place changes of lists and dicts are detected, or only new objects.
    watches_in_place: ClassVar[bool] = True

    class Meta:
        abstract = True

    _as_read: dict[str, Any]

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Write the changed columns; raises `NotFound` if the row was deleted meanwhile."""
        partly = not args and not {"force_insert", "update_fields"} & kwargs.keys()
        if not partly or self._state.adding or "_as_read" not in self.__dict__:
            super().save(*args, **kwargs)
            self._remember(kwargs.get("update_fields"))
            return
        columns = self._meta.concrete_fields
        now = [one.attname for one in columns if getattr(one, "auto_now", False)]
        fields = {*self.changed_fields(), *now}
        try:
            super().save(update_fields=fields, **kwargs)
        except DatabaseError as error:
            if NOTHING_THERE not in str(error):
                raise
            raise NotFound(
                format_message("{name} was deleted in the meantime.", name=str(self)),
                remedy="Reload the page, or create it again.",
            ) from None
        self._remember(fields)

    @classmethod
    def from_db(cls, *args: Any, **kwargs: Any) -> Self:
        """Create a row from database values and remember them."""
        row = super().from_db(*args, **kwargs)
        row._remember()
        return row

    def refresh_from_db(
        self, using: Any = None, fields: Any = None, from_queryset: Any = None
    ) -> None:
        """Reload values and remember them."""
        super().refresh_from_db(using, fields, from_queryset)
        self._remember(fields)

    def changed_fields(self) -> list[str]:
        """Return the columns whose values differ from the loaded ones."""
        read = self._as_read
        columns = [one.attname for one in self._meta.concrete_fields if not one.primary_key]
        return [
            name
            for name in columns
            if name in self.__dict__
            and (name not in read or self._mark(self.__dict__[name]) != read[name])
        ]

    def _remember(self, names: Iterable[str] | None = None) -> None:
        wanted = None if names is None else set(names)
        found = {
            one.attname: self._mark(self.__dict__[one.attname])
            for one in self._meta.concrete_fields
            if one.attname in self.__dict__
            and (wanted is None or one.attname in wanted or one.name in wanted)
        }
        if wanted is None:
            self._as_read = found
        elif "_as_read" in self.__dict__:
            self._as_read |= found

    def _mark(self, value: Any) -> Any:
        """Return a comparable stand-in for a value."""
        if isinstance(value, SealedValue):
            return value.mark if value.stored or not value else id(value)
        if isinstance(value, dict | list):
            return to_sorted_json(value) if self.watches_in_place else id(value)
        return value
