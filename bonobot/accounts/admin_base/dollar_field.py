"""A form field for prices: dollars on screen, micro-dollars in the database."""

from decimal import Decimal
from typing import Any

from django import forms

from bonobot.accounts.templatetags.display import plain_dollars
from bonobot.core.admin.theme import TextInput
from bonobot.core.text.amounts import MICROUSD_PER_USD


class DollarField(forms.DecimalField):
    """An optional amount that is typed in dollars; its value is a number of micro-dollars."""

    def __init__(self, *, max_microusd: int, **kwargs: Any) -> None:
        kwargs.setdefault("required", False)
        kwargs.setdefault("widget", TextInput(attrs={"inputmode": "decimal", "placeholder": "0"}))
        super().__init__(
            min_value=0, max_value=max_microusd // MICROUSD_PER_USD, decimal_places=6, **kwargs
        )

    def prepare_value(self, value: Any) -> Any:
        """Return a stored amount as it is typed, and a typed one unchanged."""
        return plain_dollars(value) if isinstance(value, int) else value

    def clean(self, value: Any) -> Any:
        """Return the typed amount in micro-dollars, None if there is none."""
        dollars: Decimal | None = super().clean(value)
        return None if dollars is None else int(dollars * MICROUSD_PER_USD)

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Return whether the typed amount differs from the stored one."""
        return super().has_changed(self.prepare_value(initial), data)
