"""Find text that people don't see: invisible characters, comments, and invisible HTML. Pure.

Characters that are invisible, reorder others, carry hidden text or control a terminal are
suspicious. They are allowed only where the script needs them: joiners in Arabic and Indic words,
zero-width spaces in Khmer and Thai, emoji sequences, flags, ideographic variation selectors,
direction marks beside right-to-left letters.

Models read comments and HTML with an invisible style like any other text.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from bonobot.core.text.linear_regex import LinearPattern
from bonobot.core.text.untrusted_text import TERMINAL_SEQUENCE

# Scripts whose letters change shape with their neighbors, so that joiners matter.
_JOINING_SCRIPTS = {
    "ADLAM", "ARABIC", "BALINESE", "BENGALI", "BRAHMI", "CHAKMA", "DEVANAGARI", "GRANTHA",
    "GUJARATI", "GURMUKHI", "HANIFI", "JAVANESE", "KAITHI", "KANNADA", "KHMER", "KHOJKI",
    "KHUDAWADI", "MALAYALAM", "MANDAIC", "MANICHAEAN", "MEETEI", "MODI", "MONGOLIAN", "MYANMAR",
    "NEWA", "NKO", "ORIYA", "PHAGS-PA", "SHARADA", "SINHALA", "SYRIAC", "TAKRI", "TAMIL",
    "TELUGU", "TIBETAN", "TIRHUTA",
}  # fmt: skip
# Scripts written without spaces, where a zero-width space marks the end of a word.
SPACELESS_SCRIPTS = {
    "BALINESE", "JAVANESE", "KHMER", "LAO", "MYANMAR", "NEW", "TAI", "THAI", "TIBETAN",
}  # fmt: skip

IDEOGRAPH = re.compile("[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]")
RIGHT_TO_LEFT = re.compile(
    "[\u05d0-\u05f4\u0620-\u065f\u066e-\u08ff\ufb1d-\ufdff\ufe70-\ufefc"
    "\U00010800-\U00010fff\U0001e800-\U0001efff]"
)
# Unicode's Extended_Pictographic with reserved code points, to allow emoji newer than Python.
_PICTOGRAPHIC = re.compile(
    "[\xa9\xae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf"
    "\u23e9-\u23f3\u23f8-\u23fa\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605"
    "\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714\u2716\u271d\u2721\u2728\u2733"
    "\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797\u27a1\u27b0\u27bf"
    "\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171"
    "\U0001f17e\U0001f17f\U0001f18e\U0001f191-\U0001f19a\U0001f1ad-\U0001f1e5"
    "\U0001f201-\U0001f20f\U0001f21a\U0001f22f\U0001f232-\U0001f23a\U0001f23c-\U0001f23f"
    "\U0001f249-\U0001f3fa\U0001f400-\U0001f53d\U0001f546-\U0001f64f\U0001f680-\U0001f6ff"
    "\U0001f774-\U0001f77f\U0001f7d5-\U0001f7ff\U0001f80c-\U0001f80f\U0001f848-\U0001f84f"
    "\U0001f85a-\U0001f85f\U0001f888-\U0001f88f\U0001f8ae-\U0001f8ff\U0001f90c-\U0001f93a"
    "\U0001f93c-\U0001f945\U0001f947-\U0001faff\U0001fc00-\U0001fffd]"
)
# Removed from texts before they are compared with what attacks say, whatever their context.
ZERO_WIDTH_CHARACTERS = "\u200b-\u200f\u00ad\u2060\ufeff"


@lru_cache(maxsize=4096)
def find_script(character: str) -> str:
    """Return the first word of the character's Unicode name, usually its script; or ""."""
    return unicodedata.name(character, "").partition(" ")[0] if character else ""


def needs_joiners(character: str) -> bool:
    """Tell whether a character is a letter or mark of a script with joiners."""
    return find_script(character) in _JOINING_SCRIPTS and unicodedata.category(character)[0] in "LM"


def is_pictographic(character: str) -> bool:
    """Tell whether a character can start an emoji."""
    return bool(_PICTOGRAPHIC.match(character))


@dataclass(frozen=True, slots=True)
class HiddenRun:
    """A run of hidden characters: the rule that it breaks, and its position."""

    rule: str
    start: int
    end: int


_CLASSES = {
    "control_character": "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f",
    "tag_character": "\U000e0000-\U000e007f",
    "bidi_control": "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069",
    "zero_width": "\u200b-\u200d",
    "variation_selector": "\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef",
    "malformed_text": "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff",
    "invisible_character": "\xad\u034f\u115f\u1160\u17b4\u17b5\u180e\u2060-\u2065\u206a-\u206f"
    "\u2800\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0080-\U000e00ff\U000e01f0-\U000e0fff",
}
# England, Scotland, Wales: the only tag flags that platforms render.
_FLAG = (
    "\U0001f3f4\U000e0067\U000e0062(?:\U000e0065\U000e006e\U000e0067|\U000e0073\U000e0063\U000e0074"
    "|\U000e0077\U000e006c\U000e0073)\U000e007f"
)
# One class finds candidates quickly; the rules then match whole sequences first: flags before tags,
# terminal sequences before control characters.
_SUSPICIOUS = re.compile(f"[{''.join(_CLASSES.values())}\U0001f3f4]")
# The candidates in ASCII.
SUSPICIOUS_ASCII = re.compile(f"[{_CLASSES['control_character']}]")
# The others, as bytes.
PLAIN_ASCII = bytes(code for code in range(0x80) if not SUSPICIOUS_ASCII.match(chr(code)))
_SUSPICIOUS_RUNS = re.compile(f"{TERMINAL_SEQUENCE}|[{''.join(_CLASSES.values())}]+")
_RULES = re.compile(
    f"(?P<flag>{_FLAG})|(?P<ansi_escape>{TERMINAL_SEQUENCE})|"
    + "|".join(f"(?P<{rule}>[{characters}])" for rule, characters in _CLASSES.items())
)
_EMOJI_STYLES = frozenset("\ufe0e\ufe0f")
_STANDARD_FORMS = frozenset("\ufe00\ufe01\ufe02")
_EMOJI_MODIFIERS = frozenset("\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff")
_KEYCAPS = frozenset("0123456789#*")
_DIRECTION_CONTROL = re.compile("[\u202a-\u202e\u2066-\u2069]")
_CLOSING_CONTROLS = {
    "\u202a": "\u202c",
    "\u202b": "\u202c",
    "\u2066": "\u2069",
    "\u2067": "\u2069",
    "\u2068": "\u2069",
}
_RIGHT_TO_LEFT_CONTROLS = frozenset("\u202b\u2067")
_DIRECTION_MARKS = frozenset("\u061c\u200e\u200f")
_MAX_DIRECTION_DEPTH = 4
# A regular expression holds the GIL; this many characters take about 10 ms.
_CHUNK_CHARACTERS = 1 << 18


def find_hidden_runs(text: str) -> Iterator[HiddenRun]:
    """Yield the hidden runs of `text` in order; adjacent runs of one rule are merged."""
    previous_run: HiddenRun | None = None
    for run in _iterate_hidden(text):
        if previous_run and previous_run.rule == run.rule and previous_run.end == run.start:
            previous_run = HiddenRun(previous_run.rule, previous_run.start, run.end)
            continue
        if previous_run:
            yield previous_run
        previous_run = run
    if previous_run:
        yield previous_run


def has_suspicious_characters(text: str) -> bool:
    """Tell whether a text has any suspicious character."""
    return _choose_pattern(text).search(text) is not None


def count_suspicious_characters(text: str) -> int:
    """Return the number of suspicious characters, without looking at their context."""
    pattern = _choose_pattern(text)
    return sum(
        len(pattern.findall(text, position, position + _CHUNK_CHARACTERS))
        for position in range(0, len(text), _CHUNK_CHARACTERS)
    )


def strip_suspicious_characters(text: str) -> str:
    """Return `text` without any suspicious character, whatever its context."""
    # A function as replacement lets other threads run in between.
    return _SUSPICIOUS_RUNS.sub(lambda _: "", text)


def _choose_pattern(text: str) -> re.Pattern[str]:
    return SUSPICIOUS_ASCII if text.isascii() else _SUSPICIOUS


def _iterate_hidden(text: str) -> Iterator[HiddenRun]:
    context, pattern = _CharacterContext(text), _choose_pattern(text)
    position = 0
    while candidate := _find_next(pattern, text, position):
        match = _RULES.match(text, candidate.start())
        position = match.end() if match else candidate.end()
        if match is None or match.lastgroup in (None, "flag"):
            continue
        if not context.is_legitimate(match.lastgroup, match.start()):
            yield HiddenRun(match.lastgroup, match.start(), match.end())


def _find_next(characters: re.Pattern[str], text: str, position: int) -> re.Match[str] | None:
    """Return the first match of a character class from `position` on."""
    for start in range(position, len(text), _CHUNK_CHARACTERS):
        if match := characters.search(text, start, start + _CHUNK_CHARACTERS):
            return match
    return None


class _CharacterContext:
    """Decides whether a suspicious character is legitimate in its context."""

    def __init__(self, text: str) -> None:
        self._text = text

    def is_legitimate(self, rule: str, position: int) -> bool:
        """Tell whether the script around `position` needs the character there."""
        character, before, after = (
            self._text[position],
            self._get_previous(position),
            self._text[position + 1 : position + 2],
        )
        match rule:
            case "zero_width":
                return self._is_valid_zero_width(position, before, after)
            case "variation_selector":
                return self._is_valid_selector(character, before, after)
            case "bidi_control":
                return self._is_valid_direction_control(position, before, after)
            case "invisible_character":
                return self._is_valid_invisible(position, before, after)
        return False

    def _get_previous(self, position: int) -> str:
        return self._text[position - 1 : position] if position else ""

    def _is_valid_zero_width(self, position: int, before: str, after: str) -> bool:
        if "\u200b" <= before <= "\u200d" or "\u200b" <= after <= "\u200d":
            return False  # two in a row never have a visible effect
        if self._text[position] == "\u200b":
            return (
                find_script(before) in SPACELESS_SCRIPTS or find_script(after) in SPACELESS_SCRIPTS
            )
        if needs_joiners(before) or needs_joiners(after):
            return True
        return (
            self._text[position] == "\u200d"
            and is_pictographic(after)
            and self._is_after_emoji(position)
        )

    def _is_after_emoji(self, position: int) -> bool:
        # At most a style and a skin tone are between the emoji and the joiner.
        for end in range(position, max(position - 3, 0), -1):
            if is_pictographic(self._text[end - 1]):
                return True
            if self._text[end - 1] not in _EMOJI_MODIFIERS:
                return False
        return False

    def _is_valid_selector(self, selector: str, before: str, after: str) -> bool:
        if not before:
            return False
        if selector in _EMOJI_STYLES:
            if before in _KEYCAPS:
                return after == "\u20e3"
            return is_pictographic(before) or _is_symbol(before)
        if "\u180b" <= selector <= "\u180f":
            return find_script(before) == "MONGOLIAN"
        if selector in _STANDARD_FORMS:
            has_standard_forms = unicodedata.category(before) == "Sm" or IDEOGRAPH.match(before)
            return bool(has_standard_forms) or find_script(before) in (
                "FULLWIDTH",
                "MYANMAR",
                "PHAGS-PA",
            )
        # An ideograph has up to 32 variants; a selector on each one would be a hidden message.
        return (
            "\U000e0100" <= selector <= "\U000e011f"
            and bool(IDEOGRAPH.match(before))
            and self._has_few_variants
        )

    def _is_valid_direction_control(self, position: int, before: str, after: str) -> bool:
        if not self._has_right_to_left:
            return False
        if self._text[position] not in _DIRECTION_MARKS:
            return position in self._paired_direction_controls
        if before in _DIRECTION_MARKS or after in _DIRECTION_MARKS:
            return False
        is_inside_word = before.isalnum() and after.isalnum()
        return not is_inside_word or RIGHT_TO_LEFT.search(before + after) is not None

    def _is_valid_invisible(self, position: int, before: str, after: str) -> bool:
        match self._text[position]:
            case "\xad":  # a soft hyphen, visible only at the end of a line
                left, right = (
                    self._text[max(position - 2, 0) : position],
                    self._text[position + 1 : position + 3],
                )
                return len(left + right) == 4 and (left + right).isalpha()
            case "\u034f":  # keeps two marks of one letter apart
                return unicodedata.category(after or " ") == "Mn"
            case "\u115f" | "\u1160":  # a filler in an old Korean syllable
                return "\u1100" <= before <= "\u11ff" or "\u1100" <= after <= "\u11ff"
            case "\u17b4" | "\u17b5":
                return find_script(before) == "KHMER"
            case "\u180e":
                return find_script(before) == "MONGOLIAN"
            case "\u2800":  # the blank of Braille
                return self._has_braille
        return False

    @cached_property
    def _has_right_to_left(self) -> bool:
        return _find_next(RIGHT_TO_LEFT, self._text, 0) is not None

    @cached_property
    def _has_braille(self) -> bool:
        return re.search("[\u2801-\u28ff]", self._text) is not None

    @cached_property
    def _has_few_variants(self) -> bool:
        variant_count = sum("\U000e0100" <= character <= "\U000e01ef" for character in self._text)
        return variant_count <= 4 + len(IDEOGRAPH.findall(self._text)) // 10

    @cached_property
    def _paired_direction_controls(self) -> frozenset[int]:
        """Return the positions of direction controls that are closed and needed by their text."""
        paired: set[int] = set()
        open_controls: list[tuple[int, str]] = []
        for match in _DIRECTION_CONTROL.finditer(self._text):
            position, character = match.start(), match.group()
            if character in _CLOSING_CONTROLS:
                open_controls.append((position, character))
                continue
            if not open_controls or _CLOSING_CONTROLS[open_controls[-1][1]] != character:
                continue
            start, opener = open_controls.pop()
            has_right_to_left = RIGHT_TO_LEFT.search(self._text, start, position)
            if len(open_controls) < _MAX_DIRECTION_DEPTH and (
                has_right_to_left or opener not in _RIGHT_TO_LEFT_CONTROLS
            ):
                paired.update((start, position))
        return frozenset(paired)


def _is_symbol(character: str) -> bool:
    return character > "\u2000" and unicodedata.category(character) in ("So", "Sm", "Sk", "Me")


_COMMENT: Final = LinearPattern(
    r"(?s)<!--(.*?)(?:-->|$)"
    r"|(?m:^[ \t]{0,3}\[(?://|[^\]\n]{1,40})\]:[ \t]*#[ \t]*[(\"'](.*?)[)\"'][ \t]*$)"
    r"|(?m:^[ \t]{0,3}\[[^\]\n]{1,40}\]:[ \t]*<>[ \t]*[(\"'](.*?)[)\"'][ \t]*$)"
)
_INVISIBLE_STYLE: Final = LinearPattern(
    r"(?is)<[a-z]+[^>]{0,400}(?:display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0|opacity\s*:\s*0(?:[^.\d]|\.0)"
    r"|color\s*:\s*(?:white|#fff|#ffffff|transparent)|left\s*:\s*-\d{3,}|\shidden[\s>=])[^>]{0,400}[^>]*>?(.*?)(?:</(?:span|div|p|td|font|a|section|li|small|b|i)|$)"
)


@dataclass(frozen=True, slots=True)
class TextLayer:
    """A hidden text, its rule and position; `aligned` if it maps character by character."""

    rule: str
    text: str
    start: int
    end: int
    aligned: bool = False


def extract_comments(text: str) -> Iterator[TextLayer]:
    """Yield the comments and the invisible HTML of a text."""
    if "<!--" in text or "]:" in text:
        for match in _COMMENT.finditer(text):
            comment = next((group for group in match.groups() if group), "")
            yield TextLayer("hidden_comment", comment, match.start(), match.end())
    if "<" in text:
        for match in _INVISIBLE_STYLE.finditer(text):
            yield TextLayer("hidden_style", match.group(1), match.start(), match.end())
