"""Amounts that people type: numbers, and money, which is stored as micro-dollars."""

import argparse
import re
from decimal import Decimal, InvalidOperation

MICROUSD_PER_USD = 1_000_000
_GROUPED = re.compile(r"-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?")


def parse_number(text: str) -> Decimal:
    """Parse a number with optional thousands separators (`1,000.50`); raises `ValueError`.

    A decimal comma is refused: `0,50` isn't 50.
    """
    stripped = text.strip()
    if "," in stripped and not _GROUPED.fullmatch(stripped):
        raise ValueError(text)
    try:
        number = Decimal(stripped.replace(",", ""))
    except InvalidOperation:
        raise ValueError(text) from None
    if not number.is_finite() or number.adjusted() > 30:
        raise ValueError(text)
    return number


def parse_dollars(text: str, *, largest: int | None = None) -> int:
    """Parse an amount of dollars to micro-dollars, for argparse; `largest` is in micro-dollars."""
    try:
        amount = parse_number(text.removeprefix("$")) * MICROUSD_PER_USD
        micro_dollars = int(amount)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} isn't a valid amount in dollars") from None
    if micro_dollars < 0 or micro_dollars != amount:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be $0 or more, with at most six decimal places"
        )
    if largest is not None and micro_dollars > largest:
        raise argparse.ArgumentTypeError(
            f"{text!r} is more than the highest price, ${largest // MICROUSD_PER_USD:,}"
        )
    return micro_dollars
