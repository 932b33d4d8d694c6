"""Find and strip invisible characters, by script (pure).

Characters that are invisible, reorder others, carry hidden text or control a terminal are
suspicious. They are allowed only where the script needs them: joiners in Arabic and Indic words,
zero-width spaces in Khmer and Thai, emoji sequences, flags, ideographic variation selectors,
direction marks beside right-to-left letters.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from bonobot.core.text.untrusted_text import TERMINAL

# Scripts whose letters change shape with their neighbors, so that joiners matter.
_JOINING = {
    "ADLAM", "ARABIC", "BALINESE", "BENGALI", "BRAHMI", "CHAKMA", "DEVANAGARI", "GRANTHA",
    "GUJARATI", "GURMUKHI", "HANIFI", "JAVANESE", "KAITHI", "KANNADA", "KHMER", "KHOJKI",
    "KHUDAWADI", "MALAYALAM", "MANDAIC", "MANICHAEAN", "MEETEI", "MODI", "MONGOLIAN", "MYANMAR",
    "NEWA", "NKO", "ORIYA", "PHAGS-PA", "SHARADA", "SINHALA", "SYRIAC", "TAKRI", "TAMIL",
    "TELUGU", "TIBETAN", "TIRHUTA",
}  # fmt: skip
# Scripts written without spaces, where a zero-width space marks the end of a word.
SPACELESS = {
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


@lru_cache(maxsize=4096)
def find_script(character: str) -> str:
    """Return the first word of the character's Unicode name, usually its script; or ""."""
    return unicodedata.name(character, "").partition(" ")[0] if character else ""


def needs_joiners(character: str) -> bool:
    """Tell whether a character is a letter or mark of a script with joiners."""
    return find_script(character) in _JOINING and unicodedata.category(character)[0] in "LM"


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
_PLACE = re.compile(f"[{''.join(_CLASSES.values())}\U0001f3f4]")
_PLACE_IN_ASCII = re.compile(f"[{_CLASSES['control_character']}]")
_EVERYTHING = re.compile(f"{TERMINAL}|[{''.join(_CLASSES.values())}]+")
_RULES = re.compile(
    f"(?P<flag>{_FLAG})|(?P<ansi_escape>{TERMINAL})|"
    + "|".join(f"(?P<{rule}>[{characters}])" for rule, characters in _CLASSES.items())
)
_EMOJI_STYLES = frozenset("\ufe0e\ufe0f")
_STANDARD_FORMS = frozenset("\ufe00\ufe01\ufe02")
_AFTER_A_PICTURE = frozenset("\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff")
_KEYCAPS = frozenset("0123456789#*")
_TURN = re.compile("[\u202a-\u202e\u2066-\u2069]")
_CLOSED_BY = {
    "\u202a": "\u202c",
    "\u202b": "\u202c",
    "\u2066": "\u2069",
    "\u2067": "\u2069",
    "\u2068": "\u2069",
}
_TURN_TO_THE_LEFT = frozenset("\u202b\u2067")
_DIRECTION_MARKS = frozenset("\u061c\u200e\u200f")
_DEEPEST_TURN = 4
# A regular expression holds the GIL; this many characters take about 10 ms.
_AT_ONCE = 1 << 18


def find_hidden_runs(text: str) -> Iterator[HiddenRun]:
    """Yield the hidden runs of `text` in order; adjacent runs of one rule are merged."""
    last: HiddenRun | None = None
    for found in _iterate_hidden(text):
        if last and last.rule == found.rule and last.end == found.start:
            last = HiddenRun(last.rule, last.start, found.end)
            continue
        if last:
            yield last
        last = found
    if last:
        yield last


def has_suspicious_characters(text: str) -> bool:
    """Tell whether a text has any suspicious character."""
    return _choose_pattern(text).search(text) is not None


def count_suspicious_characters(text: str) -> int:
    """Return the number of suspicious characters, without looking at their context."""
    place = _choose_pattern(text)
    return sum(len(place.findall(text, at, at + _AT_ONCE)) for at in range(0, len(text), _AT_ONCE))


def strip_suspicious_characters(text: str) -> str:
    """Return `text` without any suspicious character, whatever its context."""
    # A function as replacement lets other threads run in between.
    return _EVERYTHING.sub(lambda _: "", text)


def _choose_pattern(text: str) -> re.Pattern[str]:
    return _PLACE_IN_ASCII if text.isascii() else _PLACE


def _iterate_hidden(text: str) -> Iterator[HiddenRun]:
    around, pattern = _CharacterContext(text), _choose_pattern(text)
    at = 0
    while place := _find_next(pattern, text, at):
        match = _RULES.match(text, place.start())
        at = match.end() if match else place.end()
        if match is None or match.lastgroup in (None, "flag"):
            continue
        if not around.explain(match.lastgroup, match.start()):
            yield HiddenRun(match.lastgroup, match.start(), match.end())


def _find_next(characters: re.Pattern[str], text: str, at: int) -> re.Match[str] | None:
    """Return the first match of a character class from `position` on."""
    for start in range(at, len(text), _AT_ONCE):
        if found := characters.search(text, start, start + _AT_ONCE):
            return found
    return None


class _CharacterContext:
    """Decides whether a suspicious character is legitimate in its context."""

    def __init__(self, text: str) -> None:
        self._text = text

    def explain(self, rule: str, at: int) -> bool:
        """Tell whether the script around `position` needs the character there."""
        character, before, after = self._text[at], self._before(at), self._text[at + 1 : at + 2]
        match rule:
            case "zero_width":
                return self._parts_or_joins(at, before, after)
            case "variation_selector":
                return self._selects(character, before, after)
            case "bidi_control":
                return self._directs(at, before, after)
            case "invisible_character":
                return self._belongs(at, before, after)
        return False

    def _before(self, at: int) -> str:
        return self._text[at - 1 : at] if at else ""

    def _parts_or_joins(self, at: int, before: str, after: str) -> bool:
        if "\u200b" <= before <= "\u200d" or "\u200b" <= after <= "\u200d":
            return False  # two in a row never have a visible effect
        if self._text[at] == "\u200b":
            return find_script(before) in SPACELESS or find_script(after) in SPACELESS
        if needs_joiners(before) or needs_joiners(after):
            return True
        return self._text[at] == "\u200d" and is_pictographic(after) and self._ends_a_picture(at)

    def _ends_a_picture(self, at: int) -> bool:
        # At most a style and a skin tone are between the emoji and the joiner.
        for end in range(at, max(at - 3, 0), -1):
            if is_pictographic(self._text[end - 1]):
                return True
            if self._text[end - 1] not in _AFTER_A_PICTURE:
                return False
        return False

    def _selects(self, selector: str, before: str, after: str) -> bool:
        if not before:
            return False
        if selector in _EMOJI_STYLES:
            if before in _KEYCAPS:
                return after == "\u20e3"
            return is_pictographic(before) or _is_symbol(before)
        if "\u180b" <= selector <= "\u180f":
            return find_script(before) == "MONGOLIAN"
        if selector in _STANDARD_FORMS:
            forms = unicodedata.category(before) == "Sm" or IDEOGRAPH.match(before)
            return bool(forms) or find_script(before) in ("FULLWIDTH", "MYANMAR", "PHAGS-PA")
        # An ideograph has up to 32 variants; a selector on each one would be a hidden message.
        return (
            "\U000e0100" <= selector <= "\U000e011f"
            and bool(IDEOGRAPH.match(before))
            and self._few_forms
        )

    def _directs(self, at: int, before: str, after: str) -> bool:
        if not self._right_to_left:
            return False
        if self._text[at] not in _DIRECTION_MARKS:
            return at in self._honest_turns
        if before in _DIRECTION_MARKS or after in _DIRECTION_MARKS:
            return False
        between = before.isalnum() and after.isalnum()
        return not between or RIGHT_TO_LEFT.search(before + after) is not None

    def _belongs(self, at: int, before: str, after: str) -> bool:
        match self._text[at]:
            case "\xad":  # a soft hyphen, visible only at the end of a line
                left, right = self._text[max(at - 2, 0) : at], self._text[at + 1 : at + 3]
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
                return self._braille
        return False

    @cached_property
    def _right_to_left(self) -> bool:
        return _find_next(RIGHT_TO_LEFT, self._text, 0) is not None

    @cached_property
    def _braille(self) -> bool:
        return re.search("[\u2801-\u28ff]", self._text) is not None

    @cached_property
    def _few_forms(self) -> bool:
        forms = sum("\U000e0100" <= character <= "\U000e01ef" for character in self._text)
        return forms <= 4 + len(IDEOGRAPH.findall(self._text)) // 10

    @cached_property
    def _honest_turns(self) -> frozenset[int]:
        """Return the positions of direction controls that are closed and needed by their text."""
        honest: set[int] = set()
        opened: list[tuple[int, str]] = []
        for match in _TURN.finditer(self._text):
            at, character = match.start(), match.group()
            if character in _CLOSED_BY:
                opened.append((at, character))
                continue
            if not opened or _CLOSED_BY[opened[-1][1]] != character:
                continue
            start, opener = opened.pop()
            inside = RIGHT_TO_LEFT.search(self._text, start, at)
            if len(opened) < _DEEPEST_TURN and (inside or opener not in _TURN_TO_THE_LEFT):
                honest.update((start, at))
        return frozenset(honest)


def _is_symbol(character: str) -> bool:
    return character > "\u2000" and unicodedata.category(character) in ("So", "Sm", "Sk", "Me")
