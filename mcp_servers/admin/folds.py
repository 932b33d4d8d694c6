"""Folds: fields of a form that most leave as they are, under a line that says what they are about.

A fold is open where something in it was said or is wrong, so that nothing that holds is hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django import forms


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Some fields of a form; `shows` is the choice of another field that they belong to.

    `asked` tells that a fault elsewhere in the form is mended here.
    """

    title: Any
    fields: Sequence[forms.BoundField]
    shows: str = ""
    asked: bool = False

    @property
    def open(self) -> bool:
        """Tell whether it stands open from the start."""
        return self.asked or any(field.errors or _said(field) for field in self.fields)


def _said(field: forms.BoundField) -> bool:
    """Tell whether a field holds something else than the form's own default."""
    return bool((field.value() or None) != (field.field.initial or None))
