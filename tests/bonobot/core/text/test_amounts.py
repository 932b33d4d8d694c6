"""Typed amounts: thousands separators, and no decimal comma that would be a hundredfold."""

import argparse

import pytest

from agents.admin.agents import parse_amount
from agents.models import Budget
from bonobot.core.problems import InvalidInput
from bonobot.core.text.amounts import parse_dollars


@pytest.mark.parametrize(
    ("text", "micro_dollars"),
    [("0.5", 500_000), ("$1,000.50", 1_000_500_000), ("1,000,000", 10**12), (" 2 ", 2_000_000)],
)
def test_an_amount_is_read_in_dollars(text: str, micro_dollars: int) -> None:
    assert parse_dollars(text) == micro_dollars
    assert parse_amount(Budget.Unit.MONEY, text) == micro_dollars


@pytest.mark.parametrize(
    "text",
    ["0,50", "1.000,50", "1,00", ",5", "1,0000", "nan", "inf", "1e400", "1e5000000", "-1", ""],
)
def test_an_ambiguous_or_endless_amount_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_dollars(text)
    with pytest.raises(InvalidInput):
        parse_amount(Budget.Unit.MONEY, text)


def test_dollars_have_an_upper_bound_if_one_is_given() -> None:
    assert parse_dollars("1,000", largest=10**9) == 10**9
    with pytest.raises(argparse.ArgumentTypeError, match=r"highest price, \$1,000$"):
        parse_dollars("1000.000001", largest=10**9)
    with pytest.raises(argparse.ArgumentTypeError, match="at most six decimal places"):
        parse_dollars("0.0000001")
