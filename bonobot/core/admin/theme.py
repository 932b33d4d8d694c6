"""The admin theme; the only module that imports unfold.

Everything else imports its admin classes, decorators, widgets and filters from here, so that the
theme can be replaced in one file.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.contrib.admin import register, site
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.text import capfirst, format_lazy
from django.utils.translation import gettext_lazy as _
from unfold.admin import ModelAdmin, checkbox
from unfold.contrib.filters.admin import ChoicesCheckboxFilter as ThemeChoicesCheckboxFilter
from unfold.contrib.filters.admin import (
    ChoicesDropdownFilter,
    DropdownFilter,
    FieldTextFilter,
    RangeDateTimeFilter,
)
from unfold.decorators import action, display
from unfold.forms import (
    AdminPasswordChangeForm,
    AuthenticationForm,
    UserChangeForm,
    UserCreationForm,
)
from unfold.sites import UnfoldAdminSite as AdminSite
from unfold.templatetags import unfold_list
from unfold.views import ChangeList
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget as IntegerInput,
)
from unfold.widgets import (
    UnfoldAdminPasswordWidget as PasswordInput,
)
from unfold.widgets import UnfoldAdminSelectWidget
from unfold.widgets import (
    UnfoldAdminTextareaWidget as Textarea,
)
from unfold.widgets import (
    UnfoldAdminTextInputWidget as TextInput,
)
from unfold.widgets import (
    UnfoldBooleanWidget as Checkbox,
)

from bonobot.core.i18n import time_zones
from bonobot.core.text.masked_values import MASK

__all__ = [
    "AdminPasswordChangeForm",
    "AdminSite",
    "AuthenticationForm",
    "ChangeList",
    "Checkbox",
    "ChoicesCheckboxFilter",
    "ChoicesDropdownFilter",
    "DateTimeRangeFilter",
    "DropdownFilter",
    "FieldTextFilter",
    "IntegerInput",
    "ModelAdmin",
    "PasswordInput",
    "SecretInput",
    "Select",
    "TextInput",
    "Textarea",
    "UserChangeForm",
    "UserCreationForm",
    "action",
    "checkbox",
    "display",
    "register",
    "site",
]


class Select(UnfoldAdminSelectWidget):
    """A select whose options begin with a capital letter, except names that people chose.

    Labels of choices are translated, and lower case because sentences contain them too.
    """

    def create_option(
        self, name: str, value: Any, label: Any, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        shown_label = capfirst(str(label)) if isinstance(label, Promise) else label
        option: dict[str, Any] = super().create_option(name, value, shown_label, *args, **kwargs)
        return option


class ChoicesCheckboxFilter(ThemeChoicesCheckboxFilter):
    """A filter by several choices, which begin with a capital letter as those of `Select`."""

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        """Yield the form with the choices."""
        labels = dict(self.field.flatchoices)
        for choice in super().choices(changelist):
            for field in choice["form"].fields.values():
                field.choices = [
                    (value, capfirst(str(text)) if isinstance(labels[value], Promise) else text)
                    for value, text in field.choices
                ]
            yield choice


class SecretInput(PasswordInput):
    """An input for a secret that shows the mask of a stored one, never the entered text.

    If a form has errors, an entered secret must be entered again: a blank input would mean that
    there is none.
    """

    def __init__(self, attrs: dict[str, Any] | None = None) -> None:
        super().__init__({"autocomplete": "new-password"} | (attrs or {}), render_value=True)

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        """Return the template context without the entered secret."""
        if value not in (None, "", MASK):
            value = None
            attrs = (attrs or {}) | {"placeholder": str(_("Enter it again")), "required": True}
        context: dict[str, Any] = super().get_context(name, value, attrs)
        return context


class DateTimeRangeFilter(RangeDateTimeFilter):
    """Filters rows between two times in the reader's zone; a date alone includes the whole day.

    `column_label` replaces the model's label of the column.
    """

    column_label: Any = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        untyped: Any = self
        label = self.column_label or untyped.title
        untyped.title = format_lazy("{} ({})", label, time_zones.get_zone_name())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        """Return the rows in the range; invalid dates are ignored."""
        bounds = zip(("gte", "lte"), self.parse_bounds(), strict=True)
        conditions = {
            f"{self.parameter_name}__{lookup}": bound for lookup, bound in bounds if bound
        }
        return queryset.filter(**conditions)

    def parse_bounds(self) -> tuple[datetime | None, datetime | None]:
        """Return the first and the last time of the range."""
        since, until = (
            [self._get_parameter(f"{end}_{part}") for part in (0, 1)] for end in ("from", "to")
        )
        return time_zones.parse_datetime(*since), time_zones.parse_datetime(*until, is_end=True)

    def _get_parameter(self, name: str) -> str:
        value: Any = self.used_parameters.get(f"{self.parameter_name}_{name}")
        return str(value or "")


def _list_headers_once(changelist: Any) -> Iterator[dict[str, Any]]:
    """Yield the headers of a list, which the theme would compute again for each of its rows."""
    headers = vars(changelist).get("listed_headers")
    if headers is None:
        headers = vars(changelist)["listed_headers"] = list(_compute_headers(changelist))
    return iter(headers)


_compute_headers = unfold_list.result_headers
unfold_list.result_headers = _list_headers_once
