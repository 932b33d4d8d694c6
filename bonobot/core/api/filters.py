"""List filters that refuse unreadable values."""

from typing import Any

import django_filters
from django import forms
from django.core.exceptions import ValidationError

TRUTHS = {"true": True, "false": False}


class StrictBooleanField(forms.Field):
    """`true` or `false`; Django's own field takes everything else for "unknown"."""

    def to_python(self, value: Any) -> bool | None:
        """Return what is meant, None where nothing is said; raises `ValidationError`."""
        if value in (None, ""):
            return None
        if (text := str(value).lower()) in TRUTHS:
            return TRUTHS[text]
        raise ValidationError("It is neither `true` nor `false`.", code="invalid")


class StrictBooleanFilter(django_filters.BooleanFilter):
    """Yes or no."""

    field_class = StrictBooleanField


class StrictFilterSet(django_filters.FilterSet):
    """What rows are looked for by."""

    def is_valid(self) -> bool:
        """Tell whether every value can be read; one that is empty can't, where it isn't text."""
        read = bool(super().is_valid())
        for name, kind in self.filters.items():
            if self.data.get(name) == "" and not isinstance(kind, django_filters.CharFilter):
                self.form.add_error(name, ValidationError("It is empty.", code="blank"))
                read = False
        return read
