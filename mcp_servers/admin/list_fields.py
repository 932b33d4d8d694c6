"""Form fields for lists and mappings of strings, which are shown as lines or, if needed, as JSON.

What a field shows is always read back as the same value: saving a form with an unchanged field
doesn't change it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from bonobot.core.admin.theme import Textarea

NOT_AN_ARRAY = _("Text that starts with [ must be a JSON array of strings.")
NOT_AN_OBJECT = _("Text that starts with { must be a JSON object of strings.")


def format_strings(strings: Sequence[str]) -> str:
    """Return one string per line, or a JSON array if lines can't represent the strings."""
    lines = "\n".join(strings)
    if not lines.startswith("[") and _split_lines(lines) == list(strings):
        return lines
    return json.dumps(list(strings), ensure_ascii=False, indent=2)


def parse_strings(text: str) -> list[str]:
    """Return the strings of lines or of a JSON array; raises ValueError for invalid JSON."""
    if not text.lstrip().startswith("["):
        return _split_lines(text)
    strings = _load_json(text)
    if not _is_list_of_strings(strings):
        raise ValueError("The array has items that aren't strings.")
    return list(strings)


def format_pairs(pairs: Mapping[str, Any]) -> str:
    """Return one NAME=value per line, or a JSON object if lines can't represent the pairs."""
    lines = "\n".join(f"{name}={value}" for name, value in pairs.items())
    try:
        is_readable = not lines.startswith("{") and _split_pairs(lines) == dict(pairs)
    except ValueError:
        is_readable = False
    return lines if is_readable else json.dumps(dict(pairs), ensure_ascii=False, indent=2)


def parse_pairs(text: str) -> dict[str, Any]:
    """Return the pairs of lines or of a JSON object; raises ValueError if they aren't valid.

    Values of a JSON object may also be arrays of strings, such as the scopes of a sign-in.
    """
    if not text.lstrip().startswith("{"):
        return _split_pairs(text)
    pairs = _load_json(text)
    if not all(isinstance(value, str) or _is_list_of_strings(value) for value in pairs.values()):
        raise ValueError("The object has values that aren't strings.")
    return dict(pairs)


def _load_json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("The JSON is nested too deeply.") from None


def _is_list_of_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _split_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _split_pairs(text: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for line in _split_lines(text):
        name, equals, value = line.partition("=")
        if not (equals and name.strip()):
            raise ValueError("A line isn't NAME=value.")
        pairs[name.strip()] = value.strip()
    return pairs


class StringListField(forms.CharField):
    """A list of strings, such as the arguments of a program."""

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) or value is None else format_strings(value)

    def clean(self, value: Any) -> list[str]:
        """Return the strings; raises ValidationError for an invalid JSON array."""
        text = str(super().clean(self.prepare_value(value)) or "")
        try:
            return parse_strings(text)
        except ValueError:
            raise ValidationError(NOT_AN_ARRAY, code="invalid") from None


class KeyValueLinesField(forms.CharField):
    """A mapping of names to values; values may be secrets, so drafts leave them out."""

    def __init__(self, label: Any, help_text: Any, hint: str) -> None:
        area = Textarea(
            attrs={"rows": 2, "placeholder": hint, "spellcheck": "false", "data-secret": True}
        )
        super().__init__(label=label, help_text=help_text, required=False, widget=area)

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) or value is None else format_pairs(value)

    def clean(self, value: Any) -> dict[str, Any]:
        """Return the mapping; raises ValidationError for an invalid line or JSON object."""
        text = str(super().clean(self.prepare_value(value)) or "")
        try:
            return parse_pairs(text)
        except ValueError:
            is_json = text.startswith("{")
            message = NOT_AN_OBJECT if is_json else _("Enter one NAME=value per line.")
            raise ValidationError(message, code="invalid") from None
