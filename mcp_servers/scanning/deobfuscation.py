"""Fold text and decode what it hides: encodings, look-alikes, comments (pure).

A layer is a decoded text and its position. At most three levels and 64 KiB in all.

Folding removes case, accents, width, mathematical alphabets, decorations and repeated spaces.
Linear in the text.
"""

import base64
import binascii
import codecs
import html
import re
import tomllib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Final
from urllib.parse import unquote

from bonobot.core.text.linear_regex import LinearPattern
from mcp_servers.scanning.hidden_characters import ZERO_WIDTH_CHARACTERS

TABLES: Final = tomllib.loads(
    files(__package__).joinpath("lookalike_letters.toml").read_text(encoding="utf-8")
)
_DROPPED: Final = re.compile(
    f"[*`\u0300-\u036f\u0591-\u05c7\u0640\u064b-\u065f\u0670{ZERO_WIDTH_CHARACTERS}]"
)
_LETTERS: Final[dict[str, str]] = TABLES["plain"]
_SPACES: Final = re.compile(" {2,}")


class _FoldTable(dict[int, str]):
    """A translation table that folds each character on first use."""

    def __missing__(self, code: int) -> str:
        folded = _fold_character(chr(code))
        if len(self) < 1 << 16:
            self[code] = folded
        return folded


def _fold_character(character: str) -> str:
    if character.isspace():
        return " "
    if character in _LETTERS:
        return _LETTERS[character]
    lowered = unicodedata.normalize("NFKC", character).lower()
    if any("\xc0" <= part <= "\u024f" or "\u1e00" <= part <= "\u1eff" for part in lowered):
        lowered = unicodedata.normalize("NFKD", lowered)
    folded = _DROPPED.sub("", "".join(_LETTERS.get(part, part) for part in lowered))
    return " " if folded and folded.isspace() else folded


_FOLD_TABLE: Final = _FoldTable()


def fold_text(text: str) -> str:
    """Return `text` in lower case, without decorations, with single spaces."""
    return _SPACES.sub(" ", text.translate(_FOLD_TABLE))


def find_original_positions(text: str, *positions: int) -> list[int]:
    """Return the positions in `text` of ascending `positions` in `fold_text(text)`."""
    originals: list[int] = []
    length, after_space = 0, False
    for index, character in enumerate(text):
        folded = _FOLD_TABLE[ord(character)]
        if folded == " ":
            folded, after_space = ("" if after_space else " "), True
        elif folded:
            after_space = False
        length += len(folded)
        while len(originals) < len(positions) and length > positions[len(originals)]:
            originals.append(index)
        if len(originals) == len(positions):
            return originals
    return originals + [len(text)] * (len(positions) - len(originals))


MAX_DEPTH: Final = 3
MAX_LAYER_CHARACTERS: Final = 65_536
_MIN_LAYER_CHARACTERS: Final = 8

_BASE64: Final = LinearPattern(r"[A-Za-z0-9+/_-]{16,}={0,2}(?:\s{1,2}[A-Za-z0-9+/_-]{16,}={0,2})*")
_BASE32: Final = LinearPattern(r"[A-Z2-7]{24,}={0,6}")
_HEX: Final = LinearPattern(r"(?i)(?:(?:0x|\\x)?[0-9a-f]{2}[\s:,-]{0,2}){12,}")
_CHARACTER_CODES: Final = LinearPattern(
    r"(?:\b(?:3[2-9]|[4-9][0-9]|1[01][0-9]|12[0-6])[\s,;]{1,2}){11,}\d{2,3}"
)
_BINARY: Final = LinearPattern(r"(?:[01]{8}\s{0,2}){8,}")
_ESCAPES: Final = LinearPattern(r"(?i)(?:\\u[0-9a-f]{4}|\\x[0-9a-f]{2}|\\u\{[0-9a-f]{1,6}\}){4,}")
_PERCENT: Final = LinearPattern(r"(?i)[^\s%]*(?:%[0-9a-f]{2}[^\s%]*){4,}")
_ENTITY: Final = LinearPattern(r"(?i)&(?:#x[0-9a-f]{1,6}|#[0-9]{1,7}|[a-z]{2,31});")
_SPACED_LETTERS: Final = LinearPattern(
    r"(?:^|[^\pL\pN])(?:[\pL\pN][ .\-_*|/]){5,}[\pL\pN](?:$|[^\pL\pN])"
)
_COMMENT: Final = LinearPattern(
    r"(?s)<!--(.*?)(?:-->|$)"
    r"|(?m:^[ \t]{0,3}\[(?://|[^\]\n]{1,40})\]:[ \t]*#[ \t]*[(\"'](.*?)[)\"'][ \t]*$)"
    r"|(?m:^[ \t]{0,3}\[[^\]\n]{1,40}\]:[ \t]*<>[ \t]*[(\"'](.*?)[)\"'][ \t]*$)"
)
_INVISIBLE_STYLE: Final = LinearPattern(
    r"(?is)<[a-z]+[^>]{0,400}(?:display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0|opacity\s*:\s*0(?:[^.\d]|\.0)"
    r"|color\s*:\s*(?:white|#fff|#ffffff|transparent)|left\s*:\s*-\d{3,}|\shidden[\s>=])[^>]{0,400}[^>]*>?(.*?)(?:</(?:span|div|p|td|font|a|section|li|small|b|i)|$)"
)
_LEET: Final = str.maketrans("013457@$!89", "oieastasibg")
_LEET_L: Final = str.maketrans("013457@$!89", "oleastasibg")
_LEET_WORD: Final = LinearPattern(r"\pL[013457@$!]+\pL|\b[013457@$!]\pL{2,}|\pL{2,}[013457@$]\b")
_LOOKALIKES: Final = str.maketrans(TABLES["lookalikes"]["letters"], TABLES["lookalikes"]["read_as"])
_MIXED_SCRIPTS: Final = LinearPattern(
    r"[A-Za-z][\p{Cyrillic}\p{Greek}\x{251}\x{261}\x{217c}]"
    r"|[\p{Cyrillic}\p{Greek}\x{251}\x{261}\x{217c}][A-Za-z]"
)
_WIDE_LETTERS: Final = LinearPattern(
    "(?:[\uff21-\uff3a\uff41-\uff5a]{3,}"
    "|[\U0001d400-\U0001d7ff]{3,}|[\u249c-\u24e9]{3,}|[\U0001f110-\U0001f189]{3,})"
)
# Common words, to detect rotated and reversed text; two of them are enough.
_MIN_COMMON_WORDS: Final = 2
_COMMON_WORDS: Final = (
    "the|and|you|your|this|that|for|what|when|every|which|must|before|after|all|any|with|from|into|are|one|will|user|users|tool|send"
    "|read|file|files|ignore|instructions|previous|rules|always|never|tell|contents|password|secret"
)
_ROTATED_WORDS: Final = LinearPattern(rf"(?i)\b(?:{codecs.encode(_COMMON_WORDS, 'rot13')})\b")
_REVERSED_WORDS: Final = LinearPattern(
    rf"(?i)\b(?:{'|'.join(word[::-1] for word in _COMMON_WORDS.split('|'))})\b"
)
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class TextLayer:
    """A hidden text, its rule and position; `aligned` if it maps character by character."""

    rule: str
    text: str
    start: int
    end: int
    aligned: bool = False


def extract_layers(text: str) -> Iterator[TextLayer]:
    """Yield the hidden layers of `text`, without `text` itself."""
    total_characters = 0
    pending = [(layer, 1) for layer in _extract_inner_layers(text)]
    while pending:
        layer, depth = pending.pop(0)
        total_characters += len(layer.text)
        if total_characters > MAX_LAYER_CHARACTERS:
            return
        yield layer
        if depth < MAX_DEPTH and not layer.aligned and len(layer.text) >= _MIN_LAYER_CHARACTERS:
            pending.extend(
                (TextLayer(inner_layer.rule, inner_layer.text, layer.start, layer.end), depth + 1)
                for inner_layer in _extract_inner_layers(layer.text)
                if inner_layer.text != text
            )


def split_identifier(name: str) -> str:
    """Return an identifier split into words."""
    return re.sub(r"[_.\-/]+", " ", _CAMEL.sub(" ", name))


def _extract_inner_layers(text: str) -> Iterator[TextLayer]:
    yield from _extract_comments(text)
    yield from _extract_encoded(text)
    yield from _extract_disguised(text)


def _extract_comments(text: str) -> Iterator[TextLayer]:
    if "<!--" in text or "]:" in text:
        for match in _COMMENT.finditer(text):
            comment = next((group for group in match.groups() if group), "")
            yield TextLayer("hidden_comment", comment, match.start(), match.end())
    if "<" in text:
        for match in _INVISIBLE_STYLE.finditer(text):
            yield TextLayer("hidden_style", match.group(1), match.start(), match.end())


def _extract_encoded(text: str) -> Iterator[TextLayer]:
    for rule, pattern, decode in (
        ("encoded_base64", _BASE64, _decode_base64),
        ("encoded_hex", _HEX, _decode_hex),
        ("encoded_codes", _CHARACTER_CODES, _decode_character_codes),
        ("encoded_binary", _BINARY, _decode_binary),
        ("encoded_base32", _BASE32, _decode_base32),
        ("encoded_escapes", _ESCAPES, _decode_escapes),
        ("encoded_percent", _PERCENT, unquote),
    ):
        for match in pattern.finditer(text):
            decoded = decode(match.group())
            if len(decoded) >= _MIN_LAYER_CHARACTERS and decoded != match.group():
                yield TextLayer(rule, decoded, match.start(), match.end())
    entities = [(match.start(), match.end()) for match in _ENTITY.finditer(text)]
    if len(entities) >= 3:
        start, end = entities[0][0], entities[-1][1]
        yield TextLayer("encoded_entities", html.unescape(text), start, end)


def _extract_disguised(text: str) -> Iterator[TextLayer]:
    for match in _SPACED_LETTERS.finditer(text):
        joined = re.sub(r"[ .\-_*|/]", "", match.group())
        yield TextLayer("spaced_letters", joined, match.start(), match.end())
    if _SPACED_LETTERS.search(text):
        yield TextLayer("spaced_letters", _join_spaced_letters(text), 0, len(text))
    if _MIXED_SCRIPTS.search(text):
        yield TextLayer(
            "lookalike_letters", text.translate(_LOOKALIKES), 0, len(text), aligned=True
        )
    if _is_leetspeak(text):
        yield TextLayer("leetspeak", text.translate(_LEET), 0, len(text), aligned=True)
        yield TextLayer("leetspeak", text.translate(_LEET_L), 0, len(text), aligned=True)
    if _is_frequent(_ROTATED_WORDS, text):
        yield TextLayer("rot13", codecs.encode(text, "rot13"), 0, len(text), aligned=True)
    if _is_frequent(_REVERSED_WORDS, text):
        yield TextLayer("reversed", text[::-1], 0, len(text))


def _is_frequent(pattern: LinearPattern, text: str) -> bool:
    return sum(1 for _ in pattern.finditer(text)) >= _MIN_COMMON_WORDS


def has_wide_letters(text: str) -> bool:
    """Tell whether a text has words in full-width or mathematical letters."""
    return _WIDE_LETTERS.search(text) is not None


def _is_leetspeak(text: str) -> bool:
    """Tell whether digits replace letters often enough to be leetspeak."""
    word_count = sum(1 for _ in _LEET_WORD.finditer(text))
    return word_count >= 4 and word_count * 6 >= text.count(" ")


def _join_spaced_letters(text: str) -> str:
    """Join letters with single separators between them; wider gaps separate words."""
    segments = re.split(r"\s{2,}|\s[|/]\s|\n", text)
    return " ".join(
        re.sub(r"(?<![^\W_]{2})[ .\-_*|/](?=[^\W_](?:[ .\-_*|/]|$))", "", word) for word in segments
    )


def _decode_readable(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        try:
            text = raw.decode("utf-16-le") if raw[1:8:2] == b"\0\0\0\0" else ""
        except UnicodeDecodeError:
            return ""
    readable_count = sum(
        character.isalnum() or character.isspace() or character in ".,:;!?'\"()<>/@_-~+&|$="
        for character in text
    )
    return text if text and readable_count >= 0.9 * len(text) else ""


def _decode_base64(encoded: str) -> str:
    raw = re.sub(r"[\s=]", "", encoded).replace("-", "+").replace("_", "/")
    try:
        return _decode_readable(
            base64.b64decode(raw[: len(raw) // 4 * 4 or None] + _build_padding(raw))
        )
    except (binascii.Error, ValueError):
        return ""


def _build_padding(raw: str) -> str:
    remainder = len(raw) % 4
    return raw[-remainder:] + "=" * (4 - remainder) if remainder in (2, 3) else ""


def _decode_base32(encoded: str) -> str:
    raw = encoded.rstrip("=")
    try:
        return _decode_readable(base64.b32decode(raw + "=" * (-len(raw) % 8)))
    except (binascii.Error, ValueError):
        return ""


def _decode_hex(encoded: str) -> str:
    digits = re.sub(r"(?i)0x|\\x|[^0-9a-f]", "", encoded)
    return _decode_readable(bytes.fromhex(digits[: len(digits) // 2 * 2]))


def _decode_character_codes(encoded: str) -> str:
    return "".join(chr(int(code)) for code in re.findall(r"\d+", encoded) if int(code) < 0x80)


def _decode_binary(encoded: str) -> str:
    return _decode_readable(bytes(int(bits, 2) for bits in re.findall("[01]{8}", encoded)))


def _decode_escapes(encoded: str) -> str:
    return "".join(
        chr(int(code, 16))
        for code in re.findall(r"(?i)\\[ux]\{?([0-9a-f]{1,6})", encoded)
        if int(code, 16) < 0x110000
    )
