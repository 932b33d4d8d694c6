"""Amounts of money, stored as micro-dollars."""

import argparse
from decimal import Decimal, InvalidOperation

MICROUSD_PER_USD = 1_000_000


def parse_dollars(text: str) -> int:
    """Parse an amount of dollars to micro-dollars, for argparse."""
    try:
        amount = Decimal(text.removeprefix("$").replace(",", "")) * MICROUSD_PER_USD
        micro_dollars = int(amount)
    except (InvalidOperation, ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} isn't a valid amount in dollars") from None
    if micro_dollars < 0 or micro_dollars != amount:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a whole number of micro-dollars, 0 or more"
        )
    return micro_dollars
