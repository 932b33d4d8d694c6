"""Named values in forms: rows of name and value, for headers and environment variables.

Stored values are sealed and come back as the mask; a row that keeps the mask keeps its value.
"""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from bonobot.lib.masking import MASK

MOST_PAIRS = 100


class PairsWidget(forms.Widget):
    """Rows of two inputs; a script adds and removes rows, without it three empty ones stand by."""

    template_name = "admin/servers/pairs.html"

    def __init__(self, *, name_hint: str, value_hint: str) -> None:
        super().__init__()
        self.name_hint, self.value_hint = name_hint, value_hint

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        """Return the rows: those that are there, and one to write into."""
        context = super().get_context(name, value, attrs)
        pairs = list(value.items()) if isinstance(value, Mapping) else list(value or ())
        context["widget"] |= {
            "pairs": pairs,
            "mask": MASK,
            "name_hint": self.name_hint,
            "value_hint": self.value_hint,
        }
        return context

    def render(
        self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None
    ) -> SafeString:
        """Return the rows, from the project's own templates."""
        return render_to_string(self.template_name, self.get_context(name, value, attrs))

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[tuple[str, str]]:
        """Return the rows that have a name or a value."""
        names, values = data.getlist(f"{name}-name"), data.getlist(f"{name}-value")
        rows = zip((each.strip() for each in names), values, strict=False)
        return [(key, value) for key, value in rows if key or value]

    def value_omitted_from_data(self, data: Any, files: Any, name: str) -> bool:
        """Tell that no rows were sent."""
        return f"{name}-name" not in data

    def id_for_label(self, id_: str) -> str:
        """Return nothing: there is no single input that the label could name."""
        return ""


class PairsField(forms.Field):
    """A mapping of names to values."""

    widget: Any = PairsWidget

    def clean(self, value: Any) -> dict[str, str]:
        """Return the mapping; every row needs a name, and each name comes once."""
        pairs = list(value.items() if isinstance(value, Mapping) else value or ())
        if len(pairs) > MOST_PAIRS:
            raise ValidationError(_("At most %d rows, please.") % MOST_PAIRS, code="too_many")
        if any(not name for name, _value in pairs):
            raise ValidationError(_("Every value needs a name."), code="missing_name")
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValidationError(_("A name stands here twice."), code="twice")
        return found
