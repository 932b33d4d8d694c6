"""Hidden characters are found; characters that languages need pass."""
# ruff: noqa: RUF001  # letters of other alphabets are what these tests are about

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.scanning import find_hidden_runs

HONEST = {
    "plain": "Lists the buckets of an account.\n\n\tUse `prefix` to narrow.\r\n",
    "Persian joiner": "فهرست پرونده\u200cها را می\u200cدهد",
    "Arabic letter alone": "الحرف ه\u200d في الكلمة",
    "Hindi": "क\u094d\u200dष और र\u094d\u200cक",
    "Sinhala": "ශ\u0dca\u200dරී ලංකා",
    "Malayalam": "അവന\u0d4d\u200d",
    "Bengali": "র\u200d\u09cdযাব",
    "Khmer": "ភាសា\u200bខ្មែរ",
    "Thai": "ภาษา\u200bไทย",
    "Myanmar": "မြန်မာ\u200bစာ",
    "Hebrew with a mark": "מחיר (USD)\u200f הוא 5",
    "Arabic with a mark": "استخدم C++\u200e هنا",
    "Hebrew in English": "The button \u2067שמור\u2069 saves.",
    "Latin in Arabic": "افتح \u2066README.md\u2069 الآن",
    "isolated by a translation library": "\u2068علی\u2069 وارد شد",
    "family": "👨\u200d👩\u200d👧\u200d👦",
    "skin tone": "👩🏽\u200d💻 and 🧑🏿\u200d🚀",
    "rainbow flag": "🏳\ufe0f\u200d🌈",
    "pirates": "🏴\u200d☠\ufe0f",
    "heart on fire": "❤\ufe0f\u200d🔥",
    "England": "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "Scotland": "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "Germany": "🇩🇪",
    "keycap": "1\ufe0f\u20e3 #\ufe0f\u20e3",
    "warning": "⚠\ufe0f Deletes everything. ✔\ufe0e",
    "arrow": "a ↔\ufe0f b →\ufe0f c",
    "ideograph of a name": "葛\U000e0100城市、辻\U000e0101さん",
    "mathematics": "a ≨\ufe00 b",
    "Mongolian": "ᠮᠣᠩᠭᠣᠯ\u180eᠠ ᠠ\u180b",
    "soft hyphens": "Donau\u00addampf\u00adschiff\u00adfahrt",
    "old Korean": "\u1102\u1160 \u115f\u1161",
    "Braille": "⠓⠑⠇⠇⠕\u2800⠺⠕⠗⠇⠙",
    "spaces of typographers": "5\u00a0km, 10\u202f000, 全角\u3000空白",
    "private use": "\uf8ff inside",
    "diaeresis kept apart": "a\u034f\u0308",
}
HIDING = {
    "zero-width space between letters": ("I\u200bg\u200bnore", "zero_width"),
    "bits of zero width": ("Done.\u200b\u200c\u200b\u200c\u200c", "zero_width"),
    "joiner between Latin letters": ("pass\u200dword", "zero_width"),
    "two joiners in Persian": ("می\u200c\u200cدهد", "zero_width"),
    "bits after Arabic": ("سلام\u200c\u200d\u200c", "zero_width"),
    "joiner before a picture only": ("a\u200d🔥", "zero_width"),
    "tags": ("Adds.\U000e0049\U000e0067\U000e006e", "tag_character"),
    "tags that pretend to be a flag": (
        "🏴\U000e0069\U000e0067\U000e006e\U000e007f",
        "tag_character",
    ),
    "override": ("safe \u202egpj.exe", "bidi_control"),
    "isolate without a reason": ("a \u2067b\u2069 c", "bidi_control"),
    "embedding left open": ("\u202aC:\\Windows", "bidi_control"),
    "mark in English": ("read\u200e_file", "bidi_control"),
    "marks between English letters": ("שלום r\u200ee\u200fa\u200ed", "bidi_control"),
    "unclosed isolate in Hebrew": ("שלום \u2067abc", "bidi_control"),
    "bytes in selectors": ("😀\U000e0139\U000e0157\U000e015e", "variation_selector"),
    "two styles": ("⚠\ufe0f\ufe0e", "variation_selector"),
    "style of a letter": ("a\ufe0fb", "variation_selector"),
    "style of a digit": ("1\ufe0f2\ufe0e", "variation_selector"),
    "a byte on each ideograph": (
        "".join(f"字{chr(0xE0100 + n % 32)}" for n in range(40)),
        "variation_selector",
    ),
    "ANSI conceal": ("\x1b[8mhidden\x1b[0m", "ansi_escape"),
    "ANSI clipboard": ("\x1b]52;c;Y3VybA==\x07", "ansi_escape"),
    "ANSI link": ("\x1b]8;;https://evil.example\x1b\\here\x1b]8;;\x1b\\", "ansi_escape"),
    "one escape": ("\x1b", "ansi_escape"),
    "C1 introducer": ("\x9b31m", "control_character"),
    "backspaces": ("good\b\b\b\bevil", "control_character"),
    "null": ("a\0b", "control_character"),
    "delete": ("a\x7f", "control_character"),
    "lone surrogate": ("a\ud83d", "malformed_text"),
    "non-character": ("a\uffff", "malformed_text"),
    "word joiner": ("pass\u2060word", "invisible_character"),
    "byte order mark": ("\ufeffread_file", "invisible_character"),
    "invisible times": ("a\u2062b", "invisible_character"),
    "Hangul filler": ("\u3164", "invisible_character"),
    "soft hyphen between single letters": ("i\u00adg\u00adn", "invisible_character"),
    "grapheme joiner between letters": ("i\u034fg", "invisible_character"),
    "Braille blanks": ("a\u2800\u2800b", "invisible_character"),
    "annotation": ("\ufff9a\ufffab\ufffb", "invisible_character"),
}


@pytest.mark.parametrize("text", HONEST.values(), ids=HONEST.keys())
def test_ordinary_text_passes(text: str) -> None:
    assert list(find_hidden_runs(text)) == []


@pytest.mark.parametrize(("text", "rule"), HIDING.values(), ids=HIDING.keys())
def test_hidden_characters_are_detected(text: str, rule: str) -> None:
    assert {run.rule for run in find_hidden_runs(text)} == {rule}


@pytest.mark.parametrize("text", HONEST.values(), ids=HONEST.keys())
def test_ordinary_text_doesnt_excuse_hidden_characters_next_to_it(text: str) -> None:
    runs = list(find_hidden_runs(f"{text} \u202eevil and\U000e0041 more"))
    assert {run.rule for run in runs} == {"bidi_control", "tag_character"}


def test_adjacent_hidden_characters_are_one_run_with_its_position() -> None:
    (run,) = find_hidden_runs("ab\u2060\ufeff\u2060cd")
    assert (run.start, run.end) == (2, 5)


@given(st.text())
def test_runs_are_ordered_dont_overlap_and_cover_only_hidden_characters(text: str) -> None:
    at = 0
    for run in find_hidden_runs(text):
        assert at <= run.start < run.end <= len(text)
        at = run.end


@given(st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126)))
def test_printable_ascii_hides_nothing(text: str) -> None:
    assert list(find_hidden_runs(text)) == []
