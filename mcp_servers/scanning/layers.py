"""Undo what hides words from a reader and not from a model: encodings, look-alikes, comments.

Each layer is a text that may be in there, and where. Bounded: three levels, 64 KiB in all.
"""

import base64
import binascii
import codecs
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from mcp_servers.scanning.folding import TABLES
from mcp_servers.scanning.patterns import Pattern

DEEPEST: Final = 3
MOST: Final = 65_536
_SHORTEST: Final = 8

_BASE64: Final = Pattern(r"[A-Za-z0-9+/_-]{16,}={0,2}(?:\s{1,2}[A-Za-z0-9+/_-]{16,}={0,2})*")
_BASE32: Final = Pattern(r"[A-Z2-7]{24,}={0,6}")
_HEX: Final = Pattern(r"(?i)(?:(?:0x|\\x)?[0-9a-f]{2}[\s:,-]{0,2}){12,}")
_CODES: Final = Pattern(r"(?:\b(?:3[2-9]|[4-9][0-9]|1[01][0-9]|12[0-6])[\s,;]{1,2}){11,}\d{2,3}")
_BINARY: Final = Pattern(r"(?:[01]{8}\s{0,2}){8,}")
_ESCAPES: Final = Pattern(r"(?i)(?:\\u[0-9a-f]{4}|\\x[0-9a-f]{2}|\\u\{[0-9a-f]{1,6}\}){4,}")
_PERCENT: Final = Pattern(r"(?i)[^\s%]*(?:%[0-9a-f]{2}[^\s%]*){4,}")
_ENTITY: Final = Pattern(r"(?i)&(?:#x[0-9a-f]{1,6}|#[0-9]{1,7}|[a-z]{2,31});")
_SPACED: Final = Pattern(r"(?:^|[^\pL\pN])(?:[\pL\pN][ .\-_*|/]){5,}[\pL\pN](?:$|[^\pL\pN])")
_COMMENT: Final = Pattern(
    r"(?s)<!--(.*?)(?:-->|$)"
    r"|(?m:^[ \t]{0,3}\[(?://|[^\]\n]{1,40})\]:[ \t]*#[ \t]*[(\"'](.*?)[)\"'][ \t]*$)"
    r"|(?m:^[ \t]{0,3}\[[^\]\n]{1,40}\]:[ \t]*<>[ \t]*[(\"'](.*?)[)\"'][ \t]*$)"
)
_INVISIBLE_STYLE: Final = Pattern(
    r"(?is)<[a-z]+[^>]{0,400}(?:display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0|opacity\s*:\s*0(?:[^.\d]|\.0)"
    r"|color\s*:\s*(?:white|#fff|#ffffff|transparent)|left\s*:\s*-\d{3,}|\shidden[\s>=])[^>]{0,400}[^>]*>?(.*?)(?:</(?:span|div|p|td|font|a|section|li|small|b|i)|$)"
)
_LEET: Final = str.maketrans("013457@$!89", "oieastasibg")
_LEET_L: Final = str.maketrans("013457@$!89", "oleastasibg")
_LEET_WORD: Final = Pattern(r"\pL[013457@$!]+\pL|\b[013457@$!]\pL{2,}|\pL{2,}[013457@$]\b")
_LOOKALIKES: Final = str.maketrans(TABLES["lookalikes"]["letters"], TABLES["lookalikes"]["read_as"])
_MIXED: Final = Pattern(
    r"[A-Za-z][\p{Cyrillic}\p{Greek}\x{251}\x{261}\x{217c}]"
    r"|[\p{Cyrillic}\p{Greek}\x{251}\x{261}\x{217c}][A-Za-z]"
)
_WIDE: Final = Pattern(
    "(?:[\uff21-\uff3a\uff41-\uff5a]{3,}"
    "|[\U0001d400-\U0001d7ff]{3,}|[\u249c-\u24e9]{3,}|[\U0001f110-\U0001f189]{3,})"
)
# Common words as they look when they are turned; two of them make it worth a reading.
_OFTEN: Final = 2
_COMMON: Final = (
    "the|and|you|your|this|that|for|what|when|every|which|must|before|after|all|any|with|from|into|are|one|will|user|users|tool|send"
    "|read|file|files|ignore|instructions|previous|rules|always|never|tell|contents|password|secret"
)
_ROTATED: Final = Pattern(rf"(?i)\b(?:{codecs.encode(_COMMON, 'rot13')})\b")
_REVERSED: Final = Pattern(rf"(?i)\b(?:{'|'.join(one[::-1] for one in _COMMON.split('|'))})\b")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Layer:
    """A text inside a text: how it was hidden and where; `aligned`: character by character."""

    rule: str
    text: str
    start: int
    end: int
    aligned: bool = False


def layers(text: str) -> Iterator[Layer]:
    """Yield what `text` says in other ways than plainly, without `text` itself."""
    spent = 0
    waiting = [(layer, 1) for layer in _inside(text)]
    while waiting:
        layer, depth = waiting.pop(0)
        spent += len(layer.text)
        if spent > MOST:
            return
        yield layer
        if depth < DEEPEST and not layer.aligned and len(layer.text) >= _SHORTEST:
            waiting.extend(
                (Layer(inner.rule, inner.text, layer.start, layer.end), depth + 1)
                for inner in _inside(layer.text)
                if inner.text != text
            )


def spoken(name: str) -> str:
    """Return an identifier as the words that it is made of."""
    return re.sub(r"[_.\-/]+", " ", _CAMEL.sub(" ", name))


def _inside(text: str) -> Iterator[Layer]:
    yield from _comments(text)
    yield from _encoded(text)
    yield from _disguised(text)


def _comments(text: str) -> Iterator[Layer]:
    if "<!--" in text or "]:" in text:
        for match in _COMMENT.finditer(text):
            said = next((one for one in match.groups() if one), "")
            yield Layer("hidden_comment", said, match.start(), match.end())
    if "<" in text:
        for match in _INVISIBLE_STYLE.finditer(text):
            yield Layer("hidden_style", match.group(1), match.start(), match.end())


def _encoded(text: str) -> Iterator[Layer]:
    for rule, pattern, decode in (
        ("encoded_base64", _BASE64, _from_base64),
        ("encoded_hex", _HEX, _from_hex),
        ("encoded_codes", _CODES, _from_codes),
        ("encoded_binary", _BINARY, _from_binary),
        ("encoded_base32", _BASE32, _from_base32),
        ("encoded_escapes", _ESCAPES, _from_escapes),
        ("encoded_percent", _PERCENT, unquote),
    ):
        for match in pattern.finditer(text):
            said = decode(match.group())
            if len(said) >= _SHORTEST and said != match.group():
                yield Layer(rule, said, match.start(), match.end())
    entities = [(match.start(), match.end()) for match in _ENTITY.finditer(text)]
    if len(entities) >= 3:
        start, end = entities[0][0], entities[-1][1]
        yield Layer("encoded_entities", html.unescape(text), start, end)


def _disguised(text: str) -> Iterator[Layer]:
    for match in _SPACED.finditer(text):
        said = re.sub(r"[ .\-_*|/]", "", match.group())
        yield Layer("spaced_letters", said, match.start(), match.end())
    if _SPACED.search(text):
        yield Layer("spaced_letters", _joined(text), 0, len(text))
    if _MIXED.search(text):
        yield Layer("lookalike_letters", text.translate(_LOOKALIKES), 0, len(text), aligned=True)
    if _leet(text):
        yield Layer("leetspeak", text.translate(_LEET), 0, len(text), aligned=True)
        yield Layer("leetspeak", text.translate(_LEET_L), 0, len(text), aligned=True)
    if _often(_ROTATED, text):
        yield Layer("rot13", codecs.encode(text, "rot13"), 0, len(text), aligned=True)
    if _often(_REVERSED, text):
        yield Layer("reversed", text[::-1], 0, len(text))


def _often(words: Pattern, text: str) -> bool:
    return sum(1 for _ in words.finditer(text)) >= _OFTEN


def wide(text: str) -> bool:
    """Tell whether words stand there in letters of another width or alphabet of symbols."""
    return _WIDE.search(text) is not None


def _leet(text: str) -> bool:
    """Tell whether digits stand for letters often enough to be a way of writing."""
    found = sum(1 for _ in _LEET_WORD.finditer(text))
    return found >= 4 and found * 6 >= text.count(" ")


def _joined(text: str) -> str:
    """Join letters that single separators keep apart; wider gaps part the words."""
    words = re.split(r"\s{2,}|\s[|/]\s|\n", text)
    return " ".join(
        re.sub(r"(?<![^\W_]{2})[ .\-_*|/](?=[^\W_](?:[ .\-_*|/]|$))", "", word) for word in words
    )


def _readable(raw: bytes) -> str:
    try:
        said = raw.decode()
    except UnicodeDecodeError:
        try:
            said = raw.decode("utf-16-le") if raw[1:8:2] == b"\0\0\0\0" else ""
        except UnicodeDecodeError:
            return ""
    seen = sum(one.isalnum() or one.isspace() or one in ".,:;!?'\"()<>/@_-~+&|$=" for one in said)
    return said if said and seen >= 0.9 * len(said) else ""


def _from_base64(run: str) -> str:
    raw = re.sub(r"[\s=]", "", run).replace("-", "+").replace("_", "/")
    try:
        return _readable(base64.b64decode(raw[: len(raw) // 4 * 4 or None] + _padding(raw)))
    except (binascii.Error, ValueError):
        return ""


def _padding(raw: str) -> str:
    rest = len(raw) % 4
    return raw[-rest:] + "=" * (4 - rest) if rest in (2, 3) else ""


def _from_base32(run: str) -> str:
    raw = run.rstrip("=")
    try:
        return _readable(base64.b32decode(raw + "=" * (-len(raw) % 8)))
    except (binascii.Error, ValueError):
        return ""


def _from_hex(run: str) -> str:
    digits = re.sub(r"(?i)0x|\\x|[^0-9a-f]", "", run)
    return _readable(bytes.fromhex(digits[: len(digits) // 2 * 2]))


def _from_codes(run: str) -> str:
    return "".join(chr(int(one)) for one in re.findall(r"\d+", run) if int(one) < 0x80)


def _from_binary(run: str) -> str:
    return _readable(bytes(int(one, 2) for one in re.findall("[01]{8}", run)))


def _from_escapes(run: str) -> str:
    return "".join(
        chr(int(one, 16))
        for one in re.findall(r"(?i)\\[ux]\{?([0-9a-f]{1,6})", run)
        if int(one, 16) < 0x110000
    )
