"""Rows that save only the columns changed since they were read.

Django's `save` writes every column, which reverts concurrent changes and recreates deleted rows.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, ClassVar, Self
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import DatabaseError, IntegrityError, models
from django.utils.text import slugify

from bonobot.core.crypto.encrypted_fields import SealedValue
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput, NotFound
from bonobot.core.text.canonical_json import to_sorted_json

# Django's message when `update_fields` matched no row.
NO_ROWS_MESSAGE = "did not affect any rows"
# Types whose values can't be changed in place, so they are their own marks.
_SIMPLE_TYPES = frozenset({bool, datetime, float, int, str, type(None), UUID})


class SavesChangedFields(models.Model):
    """A model whose `save` without `update_fields` writes the changed columns only."""

    # Whether in-place changes of lists and dicts are detected, or only new objects.
    detects_in_place_changes: ClassVar[bool] = True

    class Meta:
        abstract = True

    _as_read: dict[str, Any]

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Write the changed columns; raises `NotFound` if the row was deleted meanwhile."""
        is_partial = not args and not {"force_insert", "update_fields"} & kwargs.keys()
        if not is_partial or self._state.adding or "_as_read" not in self.__dict__:
            super().save(*args, **kwargs)
            self._remember_values(kwargs.get("update_fields"))
            return
        columns = self._meta.concrete_fields
        auto_now_columns = [field.attname for field in columns if getattr(field, "auto_now", False)]
        fields = {*self.list_changed_fields(), *auto_now_columns}
        try:
            super().save(update_fields=fields, **kwargs)
        except DatabaseError as error:
            if NO_ROWS_MESSAGE not in str(error):
                raise
            raise NotFound(
                format_message("{name} was deleted in the meantime.", name=str(self)),
                remedy="Reload the page, or create it again.",
            ) from None
        self._remember_values(fields)

    @classmethod
    def from_db(cls, *args: Any, **kwargs: Any) -> Self:
        """Create a row from database values and remember them."""
        row = super().from_db(*args, **kwargs)
        row._remember_values()
        return row

    def refresh_from_db(
        self, using: Any = None, fields: Any = None, from_queryset: Any = None
    ) -> None:
        """Reload values and remember them."""
        super().refresh_from_db(using, fields, from_queryset)
        self._remember_values(fields)

    def list_changed_fields(self) -> list[str]:
        """Return the columns whose values differ from the loaded ones."""
        loaded_marks = self._as_read
        columns = [field.attname for field in self._meta.concrete_fields if not field.primary_key]
        return [
            name
            for name in columns
            if name in self.__dict__
            and (
                name not in loaded_marks
                or self._build_mark(self.__dict__[name]) != loaded_marks[name]
            )
        ]

    def _remember_values(self, names: Iterable[str] | None = None) -> None:
        selected = None if names is None else set(names)
        values = self.__dict__
        marks = {
            name: value if type(value) in _SIMPLE_TYPES else self._build_mark(value)
            for field in self._meta.concrete_fields
            if (name := field.attname) in values
            and (selected is None or name in selected or field.name in selected)
            for value in (values[name],)
        }
        if selected is None:
            self._as_read = marks
        elif "_as_read" in values:
            self._as_read |= marks

    def _build_mark(self, value: Any) -> Any:
        """Return a comparable stand-in for a value."""
        if isinstance(value, SealedValue):
            return value.mark if value.stored or not value else id(value)
        if isinstance(value, dict | list):
            return to_sorted_json(value) if self.detects_in_place_changes else id(value)
        return value


def save_validated(row: Any) -> None:
    """Validate and save a row with a name and a slug.

    Raises `Conflict` (`name_taken`) or `InvalidInput` with the field.
    """
    try:
        row.full_clean()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        is_taken = (
            "unique" in {e.code for e in error.error_dict.get(field, [])} or field == "__all__"
        )
        if is_taken:
            raise _build_slug_conflict(row) from None
        if field == "slug" and not row.slug:
            raise InvalidInput(
                format_message(
                    "The name {name!r} has no letter from A to Z and no digit.", name=row.name
                ),
                code="invalid",
                field="name",
                remedy="Change this field.",
            ) from None
        raise InvalidInput(
            f"{messages[0]}", code="invalid", field=field, remedy="Change this field."
        ) from None
    try:
        row.save()
    except IntegrityError:
        raise _build_slug_conflict(row) from None


def _build_slug_conflict(row: Any) -> Conflict:
    """Return the error for a taken slug; most are made of the name, and forms have only that."""
    if row.slug == slugify(row.name)[: row._meta.get_field("slug").max_length]:
        return Conflict(
            format_message("A name like {name!r} is already in use.", name=row.name),
            code="name_taken",
            field="name",
            remedy="Choose another name.",
        )
    return Conflict(
        format_message("The slug {slug!r} is already in use.", slug=row.slug),
        code="name_taken",
        field="slug",
        remedy="Choose another slug.",
    )
