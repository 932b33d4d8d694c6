"""Undo what hides a text from rules: fold it, decode it, reduce it to letters, restore spaces.

A layer is a decoded text and its position: encodings, look-alikes, comments. At most three levels
and 64 KiB in all.

Folding removes case, accents, width, mathematical alphabets, decorations and repeated spaces.
Linear in the text.

Letters alone don't depend on boundaries an attacker chooses: case, accents, look-alikes, spaces,
punctuation, digits and invisible characters are removed: `r e a d _ me` and `readMe` have the same
letters. Names of other tools can be replaced by a mark.

A model can read `i g n o r e a l l`, `ignoreallrules` and `igno.re al.l`: spaces are restored for
rules that match words, only in stretches whose pieces are no words. `vocabulary.txt` has the words,
most frequent first; it is written by `benchmarks/train_scanning.py`. Pure.
"""

import base64
import binascii
import codecs
import html
import math
import re
import tomllib
import unicodedata
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import unquote

from bonobot.core.process_cache import compute_once
from bonobot.core.text.linear_regex import LARGE_MEMORY, LinearPattern
from mcp_servers.scanning.hidden_text import ZERO_WIDTH_CHARACTERS, TextLayer, extract_comments

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


# Replaces the name of a tool; no letter folds to it.
NAME_MARK: Final = "\x01"
MIN_NAME_LETTERS: Final = 7
# `search` is a word; `create_issue` is a name.
_MULTI_WORD_NAME: Final = re.compile(r"[A-Za-z0-9][_.\-/ ][A-Za-z0-9]|[a-z][A-Z]", re.A)


@dataclass(frozen=True, slots=True)
class LetterSequence:
    """The letters of a folded text in UTF-8, and each byte's position in the folded text."""

    raw: bytes
    positions: list[int]


MAX_WORD_LETTERS: Final = 16
# Shorter runs of unknown pieces can't hide anything that a rule matches.
MIN_RUN_LETTERS: Final = 8
MAX_RUN_LETTERS: Final = 2_000
# A piece with so few letters is joined to an adjacent unknown piece.
MAX_SHORT_PIECE: Final = 3
_UNKNOWN_LETTER_COST: Final = 14.0
_MAX_UNKNOWN_SHARE: Final = 0.2
_PIECE: Final = re.compile(r"[a-z]+")
# Words separated by something other than spaces.
_JOINED_WORDS: Final = re.compile(r"[a-z]+(?:[^a-z\s]{1,3}[a-z]+){3,}")
_SEPARATORS: Final = re.compile(r"[^a-z\s]+")
# A text with a larger share of unknown pieces is split as a whole.
RESPLIT_SHARE: Final = 0.2


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
    yield from extract_comments(text)
    yield from _extract_encoded(text)
    yield from _extract_disguised(text)


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


def extract_letters(folded: str) -> LetterSequence:
    """Return the letters of a folded text. Takes about 0.1 ms per KiB."""
    text = folded.translate(_LOOKALIKES)
    positions = [index for index, character in enumerate(text) if character.isalpha()]
    return _encode_letters("".join([text[index] for index in positions]), positions)


def mark_names(letters: LetterSequence, pattern: Any) -> LetterSequence:
    """Return `letters` with a mark for each name that `pattern` finds."""
    parts: list[bytes] = []
    positions: list[int] = []
    last = 0
    for match in pattern.finditer(letters.raw):
        start, end = match.span()
        parts += (letters.raw[last:start], NAME_MARK.encode())
        positions += letters.positions[last:start]
        positions.append(letters.positions[start])
        last = end
    if not parts:
        return letters
    return LetterSequence(
        b"".join((*parts, letters.raw[last:])), positions + letters.positions[last:]
    )


@lru_cache(maxsize=16)
def build_name_pattern(names: frozenset[str]) -> LinearPattern | None:
    """Return a pattern for the letters of multi-word names; None if there are none."""
    reduced_names = {reduce_to_letters(name) for name in names if _MULTI_WORD_NAME.search(name)}
    long_names = sorted(
        (reduced_name for reduced_name in reduced_names if len(reduced_name) >= MIN_NAME_LETTERS),
        key=len,
        reverse=True,
    )
    return LinearPattern("|".join(map(re.escape, long_names)), LARGE_MEMORY) if long_names else None


# Each definition of a server is compared with the names of all others.
@lru_cache(maxsize=20_000)
def reduce_to_letters(name: str) -> str:
    """Return the letters of a short text as a string."""
    return "".join(filter(str.isalpha, fold_text(name).translate(_LOOKALIKES)))


def build_other_names_pattern(
    letters: LetterSequence,
    name: object,
    own_names: Collection[str],
    peer_names: Collection[str] = (),
) -> LinearPattern | None:
    """Return a pattern of the other tools' names that are in `letters`; None if there are none.

    A name with the letters of `name` isn't another name. A pattern of all names would be compiled
    again for each definition of a server.
    """
    own_letters = reduce_to_letters(str(name))
    return build_name_pattern(
        frozenset(
            other_name
            for other_name in (*own_names, *peer_names)
            if (other_letters := reduce_to_letters(other_name)) != own_letters
            and other_letters.encode() in letters.raw
        )
    )


def find_byte_position(letters: LetterSequence, folded_position: int) -> int:
    """Return the first byte whose letter is at or after a position of the folded text."""
    return bisect_left(letters.positions, folded_position)


def _encode_letters(text: str, positions: list[int]) -> LetterSequence:
    raw = text.encode(errors="replace")
    if len(raw) == len(text):
        return LetterSequence(raw, positions)
    byte_positions: list[int] = []
    for index, character in zip(positions, text, strict=True):
        byte_positions += [index] * len(character.encode(errors="replace"))
    return LetterSequence(raw, byte_positions)


@compute_once
def load_word_costs() -> dict[str, float]:
    """Return the cost of each word; frequent words cost less."""
    text = files(__package__).joinpath("vocabulary.txt").read_text(encoding="utf-8")
    return {word: math.log(rank + 20) for rank, word in enumerate(text.split())}


def insert_spaces(text: str) -> str | None:
    """Return a folded text with spaces restored; None if nothing changes."""
    folded = fold_text(text)
    parts: list[str] = []
    last = 0
    for start, end in _find_stretches(folded):
        letters = "".join(_PIECE.findall(folded, start, end))
        chunks = [
            letters[offset : offset + MAX_RUN_LETTERS]
            for offset in range(0, len(letters), MAX_RUN_LETTERS)
        ]
        split = [_split_words(chunk) for chunk in chunks]
        if any(words is None for words in split):
            continue
        parts += (
            folded[last:start],
            " ",
            " ".join(word for words in split for word in words or ()),
        )
        parts.append(" ")
        last = end
    spaced = "".join((*parts, folded[last:]))
    separated = _JOINED_WORDS.sub(lambda match: _SEPARATORS.sub(" ", match.group()), spaced)
    return separated if parts or separated != spaced else None


def _find_stretches(folded: str) -> list[tuple[int, int]]:
    """Return the ranges to split: the whole text if much of it is unknown, else unknown runs."""
    pieces = _PIECE.findall(folded)
    unknown_letters = sum(len(piece) for piece in pieces if _is_unknown_piece(piece))
    if unknown_letters >= RESPLIT_SHARE * sum(map(len, pieces)) > 0:
        return [(0, len(folded))]
    return list(_iterate_unknown_runs(folded))


def _is_unknown_piece(piece: str) -> bool:
    return piece not in load_word_costs() or (len(piece) == 1 and piece != "a")


def _iterate_unknown_runs(folded: str) -> Iterator[tuple[int, int]]:
    """Yield runs of unknown pieces, with the short pieces between them."""
    start = end = -1
    letters = unknown = 0
    for match in _PIECE.finditer(folded):
        size = match.end() - match.start()
        is_unknown = _is_unknown_piece(match.group())
        if is_unknown or size <= MAX_SHORT_PIECE:
            if start < 0:
                start = match.start()
            end = match.end()
            letters += size
            unknown += size if is_unknown else 0
            continue
        if letters >= MIN_RUN_LETTERS and unknown * 3 >= letters:
            yield start, end
        start, letters, unknown = -1, 0, 0
    if letters >= MIN_RUN_LETTERS and unknown * 3 >= letters:
        yield start, end


def _split_words(letters: str) -> list[str] | None:
    """Return the likeliest words of a run of letters; None if too much is unknown."""
    costs = load_word_costs()
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(letters) + 1):
        cheapest = (best[end - 1][0] + _UNKNOWN_LETTER_COST, end - 1)
        for start in range(max(end - MAX_WORD_LETTERS, 0), end):
            cost = costs.get(letters[start:end])
            if cost is not None and best[start][0] + cost < cheapest[0]:
                cheapest = (best[start][0] + cost, start)
        best.append(cheapest)
    words: list[str] = []
    end = len(letters)
    while end:
        words.append(letters[best[end][1] : end])
        end = best[end][1]
    unknown_letters = sum(len(word) for word in words if word not in costs)
    return words[::-1] if unknown_letters <= len(letters) * _MAX_UNKNOWN_SHARE else None
