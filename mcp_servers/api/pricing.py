"""Prices and rate of a server, as they are written and read."""

from typing import Any

from rest_framework import serializers

from bonobot.tenancy.api.shapes import Shape
from mcp_servers.pricing import LARGEST_PRICE, LARGEST_RATE


def _price(what: str) -> Any:
    return serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=LARGEST_PRICE,
        help_text=f"What {what}, in millionths of a dollar; money budgets count it.",
    )


class PricedBody(Shape):
    """What calls of a server cost, and how often all callers together may make them."""

    call_price = _price("a call costs")
    second_price = _price("each second costs that a call runs")
    calls_per_minute = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=0,
        max_value=LARGEST_RATE,
        help_text="Of all callers together; null or 0: no limit.",
    )

    def validate_calls_per_minute(self, value: int | None) -> int:
        """Return 0 for no limit: in a specification None is to keep what is stored."""
        return value or 0


class PricedShape(Shape):
    """What calls of a server cost, and how often all callers together may make them."""

    call_price = serializers.IntegerField(help_text="Millionths of a dollar.")
    second_price = serializers.IntegerField(help_text="Millionths of a dollar.")
    calls_per_minute = serializers.IntegerField(allow_null=True, help_text="Null: no limit.")
