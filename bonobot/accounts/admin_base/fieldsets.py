"""Groups of form fields that are collapsed to a line with their values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.utils.translation import gettext as _t

from bonobot.accounts.templatetags.display import field_text
from bonobot.core.text.untrusted_text import make_visible

MAX_VALUE_LENGTH = 60


@dataclass(frozen=True, kw_only=True)
class CollapsibleFieldset:
    """Form fields that can be collapsed; `shows` is the choice (`field=value`) that shows them.

    `has_related_error`: an error of a field elsewhere is fixed here. `lists_defaults`: the summary
    has all values, not only those that differ from the default.
    """

    title: Any
    fields: Sequence[forms.BoundField]
    shows: str = ""
    has_related_error: bool = False
    lists_defaults: bool = False

    @property
    def open(self) -> bool:
        """Whether it is initially open: something in it must be corrected."""
        return self.has_related_error or any(field.errors for field in self.fields)

    @property
    def summary(self) -> str:
        """Return the values in one line."""
        values = " · ".join(self._list_values())
        return values or (_t("None") if self.lists_defaults else _t("Default"))

    def _list_values(self) -> Iterator[str]:
        for field in self.fields:
            value = field.value()
            if value in (None, "", [], {}) or not (self.lists_defaults or _is_changed(field)):
                continue
            if isinstance(field.field, forms.BooleanField):
                yield str(field.label) if value else f"{field.label}: {_t('No')}"
            elif isinstance(field.field, forms.MultipleChoiceField):
                titles = dict(field.field.choices)  # type: ignore[arg-type]
                yield ", ".join(str(titles.get(key, key)) for key in value)
            else:
                yield f"{field.label}: {_format_value(field)}"


def _format_value(field: forms.BoundField) -> str:
    """Return a value in one line; of names with values, which may be secrets, the names."""
    value = field.value()
    is_paired = isinstance(value, Mapping | list)  # a stored mapping, or posted pairs
    names = [name if isinstance(name, str) else name[0] for name in value] if is_paired else ()
    text = ", ".join(names) if is_paired else field_text(field)
    return make_visible(" ".join(text.split()), MAX_VALUE_LENGTH)


def _is_changed(field: forms.BoundField) -> bool:
    """Return whether a field's value differs from the form's default."""
    return bool((field.value() or None) != (field.field.initial or None))
