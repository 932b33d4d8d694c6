"""What a message holds that could be an argument: addresses, paths, times, numbers, quotes.

Each find has a kind and a place in the text. Strong kinds can hardly be anything else: a message
that holds one is most likely about a tool that takes one.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agents.llm.offline.words import listed
from agents.llm.offline.zones import zones_in

STRONG = listed("url email uuid datetime date time timezone path revision")
MAX_TEXT = 4_096  # characters that are looked through; what is longer is a paste, not a wish

QUOTED = re.compile(r'"([^"\n]*)"|“([^”\n]*)”|«([^»\n]*)»|`([^`\n]+)`|(?<!\w)\'([^\'\n]+)\'(?!\w)')
EXTENSIONS = (
    "bat c cc cfg conf cpp cs css csv docx env go h hpp htm html ini ipynb java jpeg jpg js json "
    "jsonl jsx kt lock log lua md mjs pdf php png pptx py rb rs rst scala sh sql svg swift tex "
    "toml ts tsv tsx txt vue wav xlsx xml yaml yml zip"
).replace(" ", "|")
PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("url", re.compile(r"\b(?:https?|ftp|wss?)://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)\]}]")),
    ("email", re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")),
    ("uuid", re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")),
    (
        "datetime",
        re.compile(
            r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?(?![\w:])"
        ),
    ),
    ("date", re.compile(r"\b\d{4}-\d\d-\d\d\b")),
    (
        "time",
        re.compile(
            r"(?<![\w:/.-])(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d)?(?:\s*[ap]\.?m\b\.?)?(?![\w:])"
            r"|(?<![\w:/.-])(?:1[0-2]|0?[1-9])\s*[ap]\.?m\b\.?"
            r"|\b(?:noon|midnight)\b",
            re.I,
        ),
    ),
    ("timezone", re.compile(r"(?!)")),  # found by name: see `_typed`
    (
        "path",
        re.compile(
            r"(?<![\w:/<])(?:~|\.{1,2})?/[^\s\"'`,;<>|?*]*[^\s\"'`,;:<>|?*.!)\]]"
            r"|\b[A-Za-z]:\\[^\s\"'`,;<>|?*]*"
            rf"|(?<![\w/@.-])[\w-]+(?:[/.][\w-]+)*\.(?:{EXTENSIONS})\b(?!\.?\w)"
        ),
    ),
    (
        "revision",
        re.compile(r"\bHEAD(?:[~^]\d*)*|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}\b"),
    ),
    (
        "number",
        re.compile(
            r"(?<![\w.:/-])-?\d{1,18}(?:,\d{3}){0,4}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,3})?(?![\d:/]|\.\d)"
        ),
    ),
)
COUNTED = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBER_WORDS = {name: number for number, name in enumerate(COUNTED.split(" "))} | {
    "twenty": 20,
    "thirty": 30,
    "fifty": 50,
    "hundred": 100,
}
NUMBER_WORD = re.compile(rf"\b(?:{'|'.join(NUMBER_WORDS)})\b", re.I)


@dataclass(frozen=True)
class Found:
    """A value found in a text, as it would be written in an argument."""

    kind: str
    value: Any
    start: int
    end: int

    def overlaps(self, start: int, end: int) -> bool:
        """Tell whether it shares a character with a stretch of the text."""
        return self.start < end and start < self.end


@lru_cache(maxsize=128)
def found_in(text: str) -> tuple[Found, ...]:
    """Return everything found in a text, by place; quotes also over what stands in them."""
    text = text[:MAX_TEXT]
    typed: list[Found] = []
    for found in _typed(text):
        if not any(other.overlaps(found.start, found.end) for other in typed):
            typed.append(found)
    for match in NUMBER_WORD.finditer(text):
        if not any(other.overlaps(match.start(), match.end()) for other in typed):
            value = NUMBER_WORDS[match.group().lower()]
            typed.append(Found("number word", value, match.start(), match.end()))
    quoted = [
        Found("quoted", next(g for g in match.groups() if g is not None), *match.span())
        for match in QUOTED.finditer(text)
    ]
    return tuple(sorted([*typed, *quoted], key=lambda found: (found.start, -found.end)))


def _typed(text: str) -> Iterator[Found]:
    for kind, pattern in PATTERNS:
        if kind == "timezone":
            for start, end, zone in zones_in(text):
                yield Found(kind, zone, start, end)
            continue
        read = READERS.get(kind, str)
        for match in pattern.finditer(text):
            yield Found(kind, read(match.group()), *match.span())


def _time(said: str) -> str:
    """Return a time of day as HH:MM, or HH:MM:SS where seconds were said."""
    said = said.lower().replace(".", "").strip()
    if said in ("noon", "midnight"):
        return "12:00" if said == "noon" else "00:00"
    half = said[-2:] if said.endswith(("am", "pm")) else ""
    hour, *rest = said.removesuffix(half).strip().split(":")
    number = int(hour)
    if half and number <= 12:
        number = number % 12 + (12 if half == "pm" else 0)
    return ":".join([f"{number:02d}", *(rest or ["00"])])


def _number(said: str) -> int | float:
    said = said.replace(",", "")
    return float(said) if re.search(r"[.eE]", said) else int(said)


READERS: dict[str, Callable[[str], Any]] = {"time": _time, "number": _number}
