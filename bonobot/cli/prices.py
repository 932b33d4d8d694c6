"""Prices and rate of a server as options; money is written in dollars."""

import argparse
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

MICRO = 1_000_000


def dollars(text: str) -> int:
    """Return an amount of dollars in micro-dollars, for argparse."""
    try:
        amount = Decimal(text.removeprefix("$").replace(",", "")) * MICRO
        whole = int(amount)
    except (InvalidOperation, ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of dollars") from None
    if whole < 0 or whole != amount:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of micro-dollars")
    return whole


def declare_prices(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    options: tuple[tuple[str, Callable[[str], int], str, str], ...] = (
        ("--call-price", dollars, "DOLLARS", "what a call costs; money budgets count it"),
        ("--second-price", dollars, "DOLLARS", "what each second of a call costs"),
        ("--calls-per-minute", int, "N", "of all callers together; 0: no limit"),
    )
    for name, kind, metavar, about in options:
        parser.add_argument(name, type=kind, metavar=metavar, help=about)


def said_prices(options: argparse.Namespace) -> dict[str, int | None]:
    """Return what was said; None keeps what is stored."""
    names = ("call_price", "second_price", "calls_per_minute")
    return {name: getattr(options, name) for name in names}
