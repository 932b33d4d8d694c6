"""The active filters of a list, each with a link that removes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.text import capfirst
from django.utils.translation import gettext as _t

from bonobot.core.text.untrusted_text import make_visible

MAX_VALUE = 60  # characters


@dataclass(frozen=True)
class FilterChip:
    """An active filter, with the query of the list without it."""

    title: Any
    value: str
    query: str


def list_filter_chips(changelist: Any) -> list[FilterChip]:
    """Return the active filters of a list of the admin (of rows of other models: a query each)."""
    chips = []
    for spec in changelist.filter_specs:
        names = [name for name in spec.expected_parameters() if name in changelist.filter_params]
        values = [
            part
            for name in names
            for value in changelist.filter_params[name]
            for part in str(value).split(",")
            if part
        ]
        if values:
            titles = _list_value_titles(spec)
            value = ", ".join(capfirst(str(titles.get(part, part))) for part in values)
            query = changelist.get_query_string(remove=names).removeprefix("?")
            title = capfirst(str(spec.title))
            chips.append(FilterChip(title, make_visible(value, MAX_VALUE), query))
    return chips


def _list_value_titles(spec: Any) -> Mapping[str, Any]:
    """Return the titles of a filter's values: its own, those of its field, or yes and no."""
    pairs = getattr(spec, "lookup_choices", None) or getattr(
        getattr(spec, "field", None), "flatchoices", None
    )
    return {str(value): title for value, title in pairs or (("1", _t("yes")), ("0", _t("no")))}
