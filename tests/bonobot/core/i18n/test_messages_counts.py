"""Numbers with their nouns."""

import pytest

from bonobot.core.i18n.messages import format_count


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 tools"), (1, "1 tool"), (2, "2 tools"), (2000, "2,000 tools")]
)
def test_the_noun_is_singular_for_one(count: int, text: str) -> None:
    assert format_count(count, "tool") == text


def test_the_plural_can_be_irregular() -> None:
    assert format_count(1, "entry", "entries") == "1 entry"
    assert format_count(2, "entry", "entries") == "2 entries"
