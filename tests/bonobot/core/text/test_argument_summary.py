"""The arguments of a call in one line."""

from typing import Any

import pytest

from bonobot.core.text.argument_summary import summarize_arguments


@pytest.mark.parametrize(
    ("arguments", "summary"),
    [
        ({"zone": "UTC", "days": [1, 2]}, "zone UTC, days [1, 2]"),
        ({"text": "two\nlines"}, "text two lines"),
        ({"text": "x" * 61}, f"text {'x' * 60}…"),
        ({"text": "\u202eabc"}, "text ⟨U+202E⟩abc"),
        ({}, ""),
        (["zone"], ""),
        (None, ""),
    ],
)
def test_names_and_values_are_in_one_visible_line(arguments: Any, summary: str) -> None:
    assert summarize_arguments(arguments, 80) == summary


def test_the_line_is_cut_at_the_limit() -> None:
    assert len(summarize_arguments(dict.fromkeys("abcdefgh", "value"), 20)) <= 21
