"""List filters that reject invalid values."""

from typing import Any

import django_filters
from django import forms
from django.core.exceptions import ValidationError

BOOLEANS = {"true": True, "false": False}


class StrictBooleanField(forms.Field):
    """`true` or `false`; Django's own field accepts everything else as "unknown"."""

    def to_python(self, value: Any) -> bool | None:
        """Return the boolean, None if blank; raises `ValidationError`."""
        if value in (None, ""):
            return None
        if (text := str(value).lower()) in BOOLEANS:
            return BOOLEANS[text]
        raise ValidationError("Must be `true` or `false`.", code="invalid")


class StrictBooleanFilter(django_filters.BooleanFilter):
    """Filters by `true` or `false`."""

    field_class = StrictBooleanField


class StrictFilterSet(django_filters.FilterSet):
    """A filter set that rejects empty values, except of text filters."""

    def is_valid(self) -> bool:
        for field in self.form.fields.values():
            if isinstance(field, forms.ChoiceField):
                choices: Any = field.choices
                values = ", ".join(str(value) for value, _label in choices if value)
                field.error_messages["invalid_choice"] = f"Must be one of: {values}."
        valid = bool(super().is_valid())
        for name, field_filter in self.filters.items():
            if self.data.get(name) == "" and not isinstance(
                field_filter, django_filters.CharFilter
            ):
                self.form.add_error(name, ValidationError("Must not be empty.", code="blank"))
                valid = False
        return valid
