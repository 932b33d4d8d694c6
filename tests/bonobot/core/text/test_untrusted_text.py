"""Text from servers: hidden characters are shown, ordinary text is unchanged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.text.untrusted_text import is_hidden, make_storable, make_visible


@pytest.mark.parametrize(
    ("hidden", "name"),
    [
        ("\x00", "0000"),
        ("\x1b", "001B"),
        ("\r", "000D"),
        ("\x9b", "009B"),
        ("\u00ad", "00AD"),
        ("\u034f", "034F"),
        ("\u115f", "115F"),
        ("\u180e", "180E"),
        ("\u200b", "200B"),
        ("\u200d", "200D"),
        ("\u200e", "200E"),
        ("\u2028", "2028"),
        ("\u202e", "202E"),
        ("\u2060", "2060"),
        ("\u2066", "2066"),
        ("\u2800", "2800"),
        ("\u3164", "3164"),
        ("\ufe0f", "FE0F"),
        ("\ufeff", "FEFF"),
        ("\uffa0", "FFA0"),
        ("\ufff9", "FFF9"),
        ("\ud800", "D800"),
        ("\ue000", "E000"),
        ("\U000e0041", "E0041"),
        ("\U000e0100", "E0100"),
        ("\U0010ffff", "10FFFF"),
    ],
)
def test_a_hidden_character_is_shown_by_its_code_point(hidden: str, name: str) -> None:
    assert make_visible(f"a{hidden}b") == f"a⟨U+{name}⟩b"


@pytest.mark.parametrize(
    "text",
    [
        "plain text, with punctuation!",
        "two\nlines\tand a tab",
        "Grüße, Ωmega, Привет, 日本語, हिन्दी, العربية",
        "smile 😀, heart ❤️, thumb 👍🏽, family 👩‍👩‍👧, key 1️⃣, flag 🇩🇪",
        "<script>alert('escaping is another's work')</script>",
        "",
    ],
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert make_visible(text) == text


def test_windows_line_endings_are_kept() -> None:
    assert make_visible("a\r\nb\n\u200b") == "a\nb\n⟨U+200B⟩"


def test_text_hidden_behind_an_emoji_is_shown() -> None:
    hidden = "".join(chr(0xE0100 + ord(letter)) for letter in "hi")
    assert make_visible(f"😀{hidden}") == "😀⟨U+E0168⟩⟨U+E0169⟩"
    assert (
        make_visible("\U0001f0d0\ufe0f") == "⟨U+1F0D0⟩⟨U+FE0F⟩"
    )  # an unassigned code point among emoji
    assert make_visible("\u200d😀\u200d") == "⟨U+200D⟩😀⟨U+200D⟩"


def test_a_long_text_is_truncated_with_a_note() -> None:
    assert make_visible("abcdef", 3) == "abc…"
    assert make_visible("abc", 3) == "abc"
    assert make_visible("a\u200bcdef", 2) == "a⟨U+200B⟩…"


@given(st.text(st.characters()))
def test_no_shown_text_contains_hidden_characters_outside_an_emoji(text: str) -> None:
    visible = make_visible(text)
    joiners = {"\u200d", "\ufe0f"}
    assert [c for c in visible if is_hidden(c) and c not in joiners] == []
    visible.encode("utf-8")


def test_characters_that_cant_be_stored_are_replaced_everywhere() -> None:
    value = {"a\x00": ["b\ud800", ("c", 1, None)], "fine\u200b": True}
    assert make_storable(value) == {"a\ufffd": ["b\ufffd", ["c", 1, None]], "fine\u200b": True}


def test_nan_and_infinity_become_text():
    assert make_storable([float("nan"), {"a": float("-inf")}, 1.5]) == ["nan", {"a": "-inf"}, 1.5]
